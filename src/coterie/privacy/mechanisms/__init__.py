"""Mechanisms: each returns its value and its event, and books the event before it draws noise."""
