"""``/v1/embeddings``: computes vectors of texts and images."""
