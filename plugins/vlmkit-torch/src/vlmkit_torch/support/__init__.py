"""Decides from files alone which checkpoints can run here; imports no torch."""
