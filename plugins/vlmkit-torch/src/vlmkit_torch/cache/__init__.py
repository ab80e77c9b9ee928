"""Memory that keeps what layers remember of tokens."""
