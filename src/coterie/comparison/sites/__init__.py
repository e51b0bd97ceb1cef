"""The decision where the tables stay: clients answer questions with sums over their rows, and the rows never leave them."""
