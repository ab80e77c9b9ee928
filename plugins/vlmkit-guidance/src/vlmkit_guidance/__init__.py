"""Constrains answers of vlmkit to a JSON schema, a pattern or a grammar, with llguidance."""
