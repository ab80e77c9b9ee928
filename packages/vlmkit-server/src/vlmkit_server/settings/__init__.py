"""The settings of the server. Public."""
