"""One run of one algorithm: the loop, its checkpoints, every client's result, and which clients would stay."""
