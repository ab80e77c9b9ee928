"""``vlmkit plugins check``, ``vlmkit plugins new`` and ``vlmkit verify``."""
