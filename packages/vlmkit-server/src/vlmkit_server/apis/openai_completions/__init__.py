"""``/v1/completions``: completes plain texts."""
