"""Load tests of OpenAI-compatible servers: ``vlmkit bench``."""
