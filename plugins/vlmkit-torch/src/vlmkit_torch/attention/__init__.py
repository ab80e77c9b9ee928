"""Attention over a paged cache: how a step is laid out, and how one layer computes it."""
