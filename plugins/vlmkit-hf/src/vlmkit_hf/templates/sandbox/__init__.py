"""A Jinja sandbox with bounds on time and memory, for chat templates of untrusted checkpoints."""
