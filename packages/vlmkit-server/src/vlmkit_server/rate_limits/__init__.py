"""Rate limits: the limits, the usage of each key and address, and refusals."""
