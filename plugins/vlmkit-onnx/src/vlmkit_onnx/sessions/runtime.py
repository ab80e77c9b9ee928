"""ONNX Runtime, imported so that it tells nobody.

Since 1.31 it writes an id of the machine into the user's cache folder and queues events about what
it does, from its import on. It asks ``ORT_DISABLE_TELEMETRY`` once, when its library is loaded. So
this whole plugin takes it from here; a value that the user has set stays.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime  # noqa: TID251

__all__ = ["onnxruntime"]
