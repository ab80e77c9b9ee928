"""Which models are in memory: loading, unloading, room. Knows no requests."""
