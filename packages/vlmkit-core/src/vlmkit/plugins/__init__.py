"""Discovery, registration and selection of plugins.

Public: :mod:`vlmkit.plugins.hookspecs`, :mod:`vlmkit.plugins.kinds` and
:mod:`vlmkit.plugins.registry`. The other modules are private.
"""
