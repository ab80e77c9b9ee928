"""Components that keep every promise in a way of their own, and must pass their contracts as is."""
