"""What to deploy: the model with the lowest expected loss, whatever is proven about collaboration. It needs no torch."""
