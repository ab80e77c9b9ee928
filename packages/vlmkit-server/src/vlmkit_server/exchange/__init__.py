"""Requests in progress: the state that they share, and how responses are sent."""
