"""Private histograms: replacements of Algorithms 1 to 3 of the paper that are differentially private from end to end."""
