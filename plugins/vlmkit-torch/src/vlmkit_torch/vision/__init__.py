"""The vision encoder."""
