"""Image processors from saved settings, for families whose rules are implemented here.

They need no transformers. :mod:`.describing` converts a processor of transformers to settings.
"""
