"""Mutation testing of the contracts: ``python -m mutants``."""
