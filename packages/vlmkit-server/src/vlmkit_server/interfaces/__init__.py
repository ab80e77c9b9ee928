"""The interfaces of APIs, tool sources and monitors, the kinds that the server owns. Public."""
