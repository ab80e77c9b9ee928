"""A scriptable, deterministic model that answers what its prompt tells it to."""
