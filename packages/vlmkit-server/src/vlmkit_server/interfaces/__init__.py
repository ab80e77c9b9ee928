"""What a source of tools and a monitor must do: the kinds that the server owns. Public."""
