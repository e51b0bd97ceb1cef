"""One module per table or figure of the papers; each runs with `python -m coterie.reproduce.<name>`."""
