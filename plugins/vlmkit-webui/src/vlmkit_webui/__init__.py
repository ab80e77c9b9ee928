"""A web page for people who use the models of a vlmkit server, as an API of that server."""
