"""What runs a decoder's graph over slots, one driver for each way a graph keeps its cache."""
