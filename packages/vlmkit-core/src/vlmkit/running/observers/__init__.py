"""Dispatch to observers, and the built-in ones."""
