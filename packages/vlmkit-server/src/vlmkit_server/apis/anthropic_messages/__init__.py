"""``/v1/messages``: Anthropic's API, translated to the chat API and back."""
