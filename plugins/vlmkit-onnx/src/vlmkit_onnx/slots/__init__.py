"""The cache: which sequence has which slot, what the slot holds, and the memory below it."""
