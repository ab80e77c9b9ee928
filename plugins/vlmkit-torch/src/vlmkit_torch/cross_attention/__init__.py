"""Decoders that attend to images by cross-attention."""
