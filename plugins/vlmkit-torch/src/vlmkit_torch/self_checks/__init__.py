"""Compares the engine with the family's own code when a model is loaded."""
