"""coterie: find out who should learn together, and let them."""

__version__ = "0.1.0"
