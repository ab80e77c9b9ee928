"""Keeps answers of vlmkit within a JSON schema, a pattern or a grammar, by llguidance."""
