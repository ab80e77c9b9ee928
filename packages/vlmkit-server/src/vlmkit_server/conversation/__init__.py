"""Conversations: from what an API decoded to a request for a runner, and back to a response."""
