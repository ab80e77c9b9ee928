"""How much may be asked for in a time: limits, what was used of them, and who is refused."""
