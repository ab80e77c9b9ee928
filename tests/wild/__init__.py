"""Folders as they are found in the wild: tiny models that were saved well, and then changed."""
