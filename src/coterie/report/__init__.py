"""Comparisons as a page, figures and terminal tables."""
