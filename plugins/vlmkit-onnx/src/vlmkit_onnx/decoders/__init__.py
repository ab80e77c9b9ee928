"""Drivers that run a decoder's graph over slots, one for each kind of cache."""
