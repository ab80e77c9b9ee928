"""Runs the tests that a change is most likely to break, in a given time; ``python -m quick``.

It chooses test files by the imports. It does not replace ``tests``: it says what it left out.
"""
