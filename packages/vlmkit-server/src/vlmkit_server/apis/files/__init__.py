"""``/v1/files``: files that clients send once and then name, as OpenAI and Anthropic have it."""
