"""``/v1/messages``: Anthropic's API, translated into the chat API's words and back."""
