"""Tries every family of the installed transformers: which ones run, agree or are refused.

``nox -s families`` runs it and writes ``docs/reference/families.md``.
"""
