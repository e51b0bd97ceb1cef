"""Several methods on the same clients: their tuning, their table, and the verdict in words."""
