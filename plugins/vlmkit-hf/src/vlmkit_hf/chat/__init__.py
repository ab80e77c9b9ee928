"""Conversations to text by a model's chat template, with tool calls and reasoning.

Detects how a template expects messages and tool calls. Tokenizes nothing and processes no images.
"""
