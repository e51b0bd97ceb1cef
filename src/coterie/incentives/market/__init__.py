"""Firms that compete: prices, bargains, and learning together without defection."""
