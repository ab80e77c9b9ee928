"""What a device's errors mean: memory ran out, the device failed, or it is gone for good.

After some errors (an assertion in a kernel, an illegal access) a CUDA context fails at everything
until the process ends. Which, no list would say for every version: the device is asked.
"""

import logging

import torch

from vlmkit.errors import EngineError, OutOfMemory

log = logging.getLogger(__name__)

# torch has classes for most, but not for what comes of a library in between, nor in all versions.
OUT_OF_MEMORY = (
    "out of memory",
    "Invalid buffer size",  # MPS, of one that is larger than the device takes
    "DefaultCPUAllocator",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
DEVICE_ERRORS = ("CUDA error", "CUDA driver error", "cuDNN error", "cuDNN_STATUS", "HIP error")


def is_out_of_memory(error: Exception) -> bool:
    """Tell whether there was not enough memory, and less work may succeed."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY)


def is_of_device(error: Exception) -> bool:
    """Tell whether a device failed, not the code that used it."""
    return isinstance(error, RuntimeError) and any(text in str(error) for text in DEVICE_ERRORS)


def free_memory(device: torch.device) -> None:
    """Give a device back what torch keeps for later, so that it can be had in other sizes."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def told(error: Exception, device: torch.device, doing: str, hint: str) -> EngineError | None:
    """Return what a failure of a device is to be called; None for other errors.

    Raise it out of the handler: the error holds the memory of everything that was computed.

    Args:
        error: what was raised; goes to the log if it is of the device.
        device: where.
        doing: what it was for, such as ``"this request"``.
        hint: what an operator can do where memory ran out; goes to the log.
    """
    if is_out_of_memory(error):
        log.warning("device %r ran out of memory, %s: %s", str(device), hint, error)
        return OutOfMemory(f"{doing} on {str(device)!r}")
    if not is_of_device(error):
        return None
    if is_alive(device):
        log.error("device %r failed", str(device), exc_info=error)
        return EngineError(f"device {str(device)!r} failed at {doing}", hint="see the log")
    log.critical("device %r failed for good; start the process again", str(device), exc_info=error)
    return EngineError(
        f"device {str(device)!r} failed and computes nothing any more",
        hint="start the process again",
    )


def told_at_load(error: Exception, device: torch.device) -> EngineError | None:
    """Return what a failure of a device is to be called while a model is made ready."""
    if not is_out_of_memory(error):
        return told(error, device, "this model", "")
    log.warning("device %r ran out of memory: %s", str(device), error)
    return EngineError(
        f"the memory of {str(device)!r} is not enough for this model and its cache",
        hint="lower engine.cache_gib, or take a smaller model or precision",
    )


def is_alive(device: torch.device) -> bool:
    """Tell whether a device still computes, by computing."""
    try:
        return bool(torch.ones(1, device=device).add(1).item() == 2)
    except Exception:  # noqa: BLE001 - of whatever kind: it does not
        return False
