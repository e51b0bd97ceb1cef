"""One run of one algorithm: the loop, its checkpoints, what every client gets out of it, and who would stay."""
