"""Attention over a paged cache: what a step looks like, and how one layer computes it."""
