"""Decoders that attend to images by cross-attention: spans, keys and values, one forward pass."""
