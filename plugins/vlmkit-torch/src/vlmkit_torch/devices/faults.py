"""Interprets errors of devices: memory ran out, the device failed, or it failed permanently.

After some errors (an assertion in a kernel, an illegal access) every call of a CUDA context fails
until the process ends. No list of such errors covers every version, so the device is tried.
"""

import logging

import torch

from vlmkit.errors import EngineError, OutOfMemory

log = logging.getLogger(__name__)

# torch has exception classes for most, but not for errors of other libraries or in all versions.
OUT_OF_MEMORY = (
    "out of memory",
    "Invalid buffer size",  # MPS, of a buffer larger than the device supports
    "DefaultCPUAllocator",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
DEVICE_ERRORS = ("CUDA error", "CUDA driver error", "cuDNN error", "cuDNN_STATUS", "HIP error")


def is_out_of_memory(error: Exception) -> bool:
    """Return whether memory ran out, so that less work may succeed."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY)


def is_of_device(error: Exception) -> bool:
    """Return whether the device failed, not the code that used it."""
    return isinstance(error, RuntimeError) and any(text in str(error) for text in DEVICE_ERRORS)


def free_memory(device: torch.device) -> None:
    """Release the memory that torch caches, so that it is available in other sizes."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def device_error(
    error: Exception, device: torch.device, doing: str, hint: str
) -> EngineError | None:
    """Return the error to raise for a failure of a device; None for other errors.

    Raise it outside the handler, because ``error`` references everything that was computed.

    Args:
        error: what was raised; logged if the device failed.
        device: that failed.
        doing: the work that failed, such as ``"this request"``.
        hint: what an operator can do if memory ran out; logged.
    """
    if is_out_of_memory(error):
        log.warning("device %r ran out of memory, %s: %s", str(device), hint, error)
        return OutOfMemory(f"{doing} on {str(device)!r}")
    if not is_of_device(error):
        return None
    if is_alive(device):
        log.error("device %r failed", str(device), exc_info=error)
        return EngineError(
            f"device {str(device)!r} failed at {doing}",
            hint="the log shows where, as does `vlmkit --debug ...`",
        )
    log.critical("device %r failed for good; start the process again", str(device), exc_info=error)
    return EngineError(
        f"device {str(device)!r} failed and computes nothing any more",
        hint="start the process again",
    )


def device_error_at_load(error: Exception, device: torch.device) -> EngineError | None:
    """Return the error to raise for a failure of a device while a model loads."""
    if not is_out_of_memory(error):
        return device_error(error, device, "this model", "")
    log.warning("device %r ran out of memory: %s", str(device), error)
    return EngineError(
        f"the memory of {str(device)!r} is not enough for this model and its cache",
        hint="lower engine.cache_gib, or take a smaller model or precision",
    )


def is_alive(device: torch.device) -> bool:
    """Return whether a device still computes, by trying it."""
    try:
        return bool(torch.ones(1, device=device).add(1).item() == 2)
    except Exception:  # noqa: BLE001 - any error shows that it does not
        return False
