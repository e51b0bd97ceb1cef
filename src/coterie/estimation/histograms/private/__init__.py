"""Private histograms: what replaces Algorithms 1 to 3 of the paper so that the promise holds from end to end."""
