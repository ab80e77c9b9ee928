"""``/v1/rerank`` and ``/v1/score``: how well documents match queries, texts and images."""
