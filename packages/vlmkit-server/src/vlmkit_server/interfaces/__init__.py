"""The interfaces of tool sources and monitors, the kinds that the server owns. Public."""
