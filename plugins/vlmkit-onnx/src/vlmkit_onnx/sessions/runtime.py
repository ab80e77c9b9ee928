"""Imports ONNX Runtime with telemetry disabled.

From version 1.31 on, ONNX Runtime writes a machine id into the user's cache folder and queues usage
events from its import on. It reads ``ORT_DISABLE_TELEMETRY`` once, when its library is loaded. All
modules of this plugin therefore import it from here. A value that the user has set is kept.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime  # noqa: TID251

__all__ = ["onnxruntime"]
