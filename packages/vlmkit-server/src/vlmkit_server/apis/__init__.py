"""The HTTP APIs: a package for each, with its routes, its wire types and its answers."""
