"""One regression per client, linear or logistic, drawn towards the population."""
