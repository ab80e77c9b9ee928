"""``/v1/embeddings``: texts and pictures as vectors."""
