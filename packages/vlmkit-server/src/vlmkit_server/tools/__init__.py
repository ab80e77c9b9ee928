"""Tools that the server runs itself. Does not depend on conversations."""
