"""Measures how the sources are built and written; ``python -m structure`` prints the tables."""
