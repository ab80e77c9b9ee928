"""``vlmkit serve`` and ``vlmkit keys``."""
