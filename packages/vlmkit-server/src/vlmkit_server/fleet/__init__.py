"""Which models are in memory: loading, unloading and the memory budget."""
