"""The HTTP server: OpenAI's API in front of pipelines. Import from the modules below it."""
