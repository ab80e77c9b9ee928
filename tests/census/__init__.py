"""Every family of the installed transformers, tried: what runs and equals, and what is refused.

``nox -s families`` runs it, and writes ``docs/reference/families.md``.
"""
