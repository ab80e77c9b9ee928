"""Correct components that differ from the built-in ones and must pass the contracts unchanged."""
