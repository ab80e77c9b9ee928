"""Linear layers that compute with packed weights."""
