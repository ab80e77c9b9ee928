"""The HTTP server: OpenAI's API in front of runners. Import from the modules below it."""
