"""Checks of graphs at load: what a decoder promises, and whether a tower computes as exported."""
