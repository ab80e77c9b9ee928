"""The hooks by which plugins register what they add, one for each kind of provider.

:mod:`vlmkit.plugins.kinds` lists the kinds. ``vlmkit_register_engines(registry)`` is called once,
at start-up, with a registry to fill. The registered providers are then used through ordinary typed
methods. A hook must import nothing heavy; the ``build`` functions that it registers may.

A plugin module must also state the API version that it was written for: ``VLMKIT_API = (1, 0)``.
"""

import pluggy

API_VERSION = (1, 0)
"""Major and minor version: a plugin's major must be equal, and its minor not above this one."""
PROJECT = "vlmkit"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
