"""Renderers: worker processes that build prompts, with their pool and their messages."""
