"""Decoders that look at pictures from outside the text, by cross-attention (Llama 3.2 Vision)."""
