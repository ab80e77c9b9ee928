"""``/v1/completions``: plain texts go on."""
