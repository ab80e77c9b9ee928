"""Image files before and while they are decoded: headers, memory bounds, decoder processes."""
