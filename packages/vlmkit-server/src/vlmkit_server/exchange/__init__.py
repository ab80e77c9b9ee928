"""The requests under way: their places, their ends, and how answers are sent."""
