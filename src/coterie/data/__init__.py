"""Clients' data in one ragged layout: arrays, tables, preprocessing, and checks of data."""
