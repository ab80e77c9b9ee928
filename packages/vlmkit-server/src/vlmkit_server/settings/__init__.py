"""What an operator can set about the server. Public."""
