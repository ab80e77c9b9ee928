"""Ollama's API for the server of vlmkit."""
