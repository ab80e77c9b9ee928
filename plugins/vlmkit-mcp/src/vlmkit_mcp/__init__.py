"""The Model Context Protocol for vlmkit."""
