"""One file per table or figure of the papers; run them with ``python -m coterie.reproduce.<name> --out DIR``."""
