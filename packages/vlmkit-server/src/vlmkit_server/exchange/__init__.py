"""Requests in progress: their admission, their deadlines, and how responses are sent."""
