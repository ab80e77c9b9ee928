"""How plugins are found, offered and chosen.

Public are :mod:`vlmkit.plugins.hookspecs`, :mod:`vlmkit.plugins.kinds` and
:mod:`vlmkit.plugins.registry`.
"""
