"""Broken components: each breaks one promise, and one test of a contract must detect it.

Each contract has a module that ends in its table. ``test_contracts_catch.py`` tries all components.
``python -m broken``, run in the folder above, writes the tables of ``docs/reference/contracts.md``.
"""
