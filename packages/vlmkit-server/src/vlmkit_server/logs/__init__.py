"""Logs of requests and of the server. They contain no content and no secrets."""
