"""Text to token ids and back, with control tokens only where trusted text has them."""
