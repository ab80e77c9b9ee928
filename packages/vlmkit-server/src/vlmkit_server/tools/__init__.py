"""Tools that the server runs itself. Knows no conversations."""
