"""Layouts of published checkpoints: tiny models that are saved correctly and then changed."""
