"""The cache: who has which slot, what it holds, and the memory below it."""
