"""How a plugin says what it adds: by hooks, one for each kind of :mod:`vlmkit.plugins.kinds`.

Hooks register, objects run: ``vlmkit_register_engines(registry)`` is called once, at start-up, with
a registry to fill; what it registered is then used through ordinary typed methods. A hook imports
nothing heavy: the ``build`` functions that it registers may.

A plugin module also says which contract it was written for: ``VLMKIT_API = (1, 0)``.
"""

import pluggy

API_VERSION = (1, 0)
"""Major and minor: a plugin's major must be the same, and its minor not over this one."""
PROJECT = "vlmkit"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
