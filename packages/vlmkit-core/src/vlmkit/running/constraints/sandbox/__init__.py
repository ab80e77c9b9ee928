"""Constraints tried in processes that can be killed, before the server compiles them itself."""
