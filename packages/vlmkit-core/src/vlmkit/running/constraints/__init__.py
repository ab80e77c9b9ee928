"""Constraints on answers: their limits, their compilation, and the grammar state of each answer."""
