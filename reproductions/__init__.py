"""The papers' experiments, one file per table or figure."""
