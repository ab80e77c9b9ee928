"""Builds the prompts of requests: opens media, decodes images and tokenizes."""
