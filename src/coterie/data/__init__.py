"""Clients' data in one ragged layout: arrays, tables, preprocessing, and what data must be like."""
