"""Chooses device and precision, and states the limits of each kind of device.

Covers the memory of a cache, and that MPS cannot compute for two threads at once. ``faults``
interprets errors of devices.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from vlmkit.errors import ConfigError
from vlmkit_torch.settings import ComputeSettings
from vlmkit_torch.support import sizing
from vlmkit_torch.support.refusal import release_of

log = logging.getLogger(__name__)

GIB = sizing.GIB
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CALL_BYTES = {"cpu": 2**19}  # see call_bytes(); measured on two cores
CALL_BYTES_OF_GPU = 2**24
MPS_FRACTION = 0.4  # of free memory for a cache; the rest is for activations and other programs
PLANNED_FRACTION = 8 / 9  # of the memory for cache and steps, where steps were not measured
MPS_RELEASE = (2, 13)  # of torch; earlier ones compute attention of views and grouped heads wrong

_mps_lock = threading.RLock()  # one for the process, like MPS's command queue
_capture_lock = threading.RLock()  # one for the process, like the allocator of CUDA memory


def choose_device(settings: ComputeSettings) -> torch.device:
    """Return the device to run on, and set torch's number of CPU threads if settings state one.

    The device has a number, as in tensors, except the CPU.

    Raises:
        ConfigError: the device is absent, or torch does not know its name.
    """
    if settings.num_threads is not None:
        torch.set_num_threads(settings.num_threads)
    if settings.device == "auto":
        return _numbered(_best_device())
    try:
        device = torch.device(settings.device)
    except RuntimeError as error:
        raise ConfigError(
            f"device {settings.device!r} must be auto, cpu, mps, cuda or cuda:N"
        ) from error
    _check_present(device, settings.device)
    return _numbered(device)


def choose_dtype(settings: ComputeSettings, own: torch.dtype | None) -> torch.dtype:
    """Return the precision for a device other than the CPU; see ``sizing`` for CPUs.

    Args:
        settings: ``auto`` follows the checkpoint.
        own: the checkpoint's precision, if it states one.
    """
    if settings.dtype != "auto":
        return DTYPES[settings.dtype]
    if own is None or not own.is_floating_point or own.itemsize > 4:
        return torch.float32
    return own


def cache_bytes(device: torch.device, memory_fraction: float, more_bytes: int = 0) -> int:
    """Return how many bytes a cache may take if neither settings nor a measurement state it.

    Args:
        device: that stores it.
        memory_fraction: of the free memory of a CUDA device, for cache and steps.
        more_bytes: bytes that will be allocated there before.
    """
    if device.type == "cuda":
        return int((free_bytes(device) - more_bytes) * memory_fraction * PLANNED_FRACTION)
    if device.type == "mps":
        used = torch.mps.driver_allocated_memory() + more_bytes
        return int(max(GIB, torch.mps.recommended_max_memory() - used) * MPS_FRACTION)
    return sizing.CACHE_BYTES


def free_bytes(device: torch.device) -> int:
    """Return the memory of a CUDA device that no program has."""
    return int(torch.cuda.mem_get_info(device)[0])


def added_bytes(device: torch.device, compute: Callable[[], object]) -> int:
    """Return the most memory of a CUDA device that a computation takes besides what is there."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_reserved(device)
    compute()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_reserved(device) - before


def call_bytes(device: torch.device) -> int:
    """Return how many bytes are copied in the time of one more call of attention."""
    return CALL_BYTES.get(device.type, CALL_BYTES_OF_GPU)


def is_mps(device: torch.device) -> bool:
    """Return whether a device is Apple's GPU."""
    return device.type == "mps"


def has_pool_for_each_thread(device: torch.device) -> bool:
    """Return whether each thread that computes on a device gets its own thread pool."""
    return device.type == "cpu" and not is_mps(device)


def exclusive(device: torch.device) -> AbstractContextManager[object]:
    """Return a lock for devices on which two computing threads would end the process.

    Only MPS is such a device (pytorch#197805). For others the context does nothing.
    """
    return _mps_lock if is_mps(device) else nullcontext()


def capture_lock(device: torch.device) -> AbstractContextManager[object]:
    """Return a lock between the capture of a CUDA graph and the image towers of other threads.

    While a graph is captured, the allocator must not take memory from the device for others.
    """
    return _capture_lock if device.type == "cuda" else nullcontext()


def for_any_thread(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that threads may use without the lock: on MPS, a copy on the CPU."""
    return tensor.cpu() if is_mps(tensor.device) else tensor


def _best_device() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        if (reason := _why_not_mps()) is None:
            return torch.device("mps")
        log.warning("the CPU computes, not MPS: %s", reason)
    return torch.device("cpu")


def _numbered(device: torch.device) -> torch.device:
    if device.type == "cpu":
        return torch.device("cpu")
    if ":" in str(device):
        return device
    return torch.device(device.type, torch.cuda.current_device() if device.type == "cuda" else 0)


def _why_not_mps() -> str | None:
    """Return why MPS cannot be used; None if it can."""
    if not torch.backends.mps.is_available():
        return "there is no MPS device"
    if release_of(torch.__version__) < MPS_RELEASE:
        return f"torch {torch.__version__} computes wrong there, 2.13 is needed"
    return None


def _check_present(device: torch.device, name: str) -> None:
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"device {name!r} is requested, but there is no CUDA device")
        if (device.index or 0) >= torch.cuda.device_count():
            raise ConfigError(
                f"device {name!r} is requested, but there are only {torch.cuda.device_count()}"
            )
    elif device.type == "mps":
        if reason := _why_not_mps():
            raise ConfigError(f"device {name!r} is requested, but {reason}")
    elif device.type != "cpu":
        raise ConfigError(f"device {name!r} must be auto, cpu, mps, cuda or cuda:N")
