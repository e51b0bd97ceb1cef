"""Many clients' networks at once: how vmap, hand-written gradients and batched matrix products run a chunk of clients."""
