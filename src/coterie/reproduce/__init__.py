"""The tables and figures of the documentation, one file per paper."""
