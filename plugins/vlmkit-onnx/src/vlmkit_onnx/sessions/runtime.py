"""Imports ONNX Runtime with telemetry and its slower form of attention disabled.

From version 1.31 on, ONNX Runtime writes a machine id into the user's cache folder and queues usage
events from its import on. It reads ``ORT_DISABLE_TELEMETRY`` once, when its library is loaded. All
modules of this plugin therefore import it from here.

From version 1.32 on, GroupQueryAttention computes scores block by block on a CPU. That saves memory
which plans count anyway, and takes up to twice the time of computing them at once. It reads
``ORT_GQA_DISABLE_FLASH_ATTENTION`` when a session is opened. Values that the user has set are kept.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("ORT_GQA_DISABLE_FLASH_ATTENTION", "1")

import onnxruntime  # noqa: TID251

__all__ = ["onnxruntime"]
