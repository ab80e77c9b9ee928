"""``/v1/chat/completions``, and what every API is translated into and from."""
