"""``/v1/responses``: OpenAI's Responses API, translated into the chat API's words and back."""
