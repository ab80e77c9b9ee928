"""Dispatch of events to observers, and the built-in observers."""
