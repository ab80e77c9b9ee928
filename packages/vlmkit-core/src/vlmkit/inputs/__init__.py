"""Inputs of Python programs and commands: conversations, images, paths and URLs. Private."""
