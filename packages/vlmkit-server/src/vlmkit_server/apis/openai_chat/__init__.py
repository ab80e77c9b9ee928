"""``/v1/chat/completions``, and the form of requests that the other APIs are translated into."""
