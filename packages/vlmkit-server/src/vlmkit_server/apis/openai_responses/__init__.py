"""``/v1/responses``: OpenAI's Responses API, translated to the chat API and back."""
