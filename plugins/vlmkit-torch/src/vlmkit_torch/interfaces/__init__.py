"""The kinds that vlmkit-torch owns, and what their providers implement. Public."""
