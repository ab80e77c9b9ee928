"""Reads a model's folder before anything runs: graphs, manifests, layouts."""
