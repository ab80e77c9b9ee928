"""Loads a model by its name and a config, and runs its worker processes. Private."""
