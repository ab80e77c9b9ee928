"""Chooses the device and the precision, and says how much memory a cache may take."""

import torch

from vlmkit.errors import ConfigError
from vlmkit_torch.settings import ComputeSettings

GIB = 2**30
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CPU_CACHE_BYTES = 4 * GIB
FREE_FRACTION = 0.8  # of a device's free memory; the rest is for activations and other programs


def choose_device(settings: ComputeSettings) -> torch.device:
    """Return the device to run on, and let torch use as many CPU threads as was asked for.

    Raises:
        ConfigError: the device is not there, or its name means nothing to torch.
    """
    if settings.num_threads is not None:
        torch.set_num_threads(settings.num_threads)
    if settings.device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(settings.device)
    except RuntimeError as error:
        raise ConfigError(
            f"device {settings.device!r} must be auto, cpu, mps, cuda or cuda:N"
        ) from error
    _check_present(device, settings.device)
    return device


def choose_dtype(
    settings: ComputeSettings, device: torch.device, own: torch.dtype | None
) -> torch.dtype:
    """Return the precision to compute in.

    ``auto`` follows the checkpoint on a GPU. On a CPU it is float32: half precision is slower
    there unless the processor has matrix units for it, and then the user may ask for it.

    Args:
        settings: what was asked for.
        device: where it will run.
        own: the checkpoint's precision, if it says.
    """
    if settings.dtype != "auto":
        return DTYPES[settings.dtype]
    if device.type == "cpu" or own is None or not own.is_floating_point or own.itemsize > 4:
        return torch.float32
    return own


def cache_bytes(device: torch.device) -> int:
    """Return how much memory a cache may take when the user does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * FREE_FRACTION)
    if device.type == "mps":
        used = torch.mps.driver_allocated_memory()
        return int(max(GIB, torch.mps.recommended_max_memory() - used) * FREE_FRACTION / 2)
    return CPU_CACHE_BYTES


def _check_present(device: torch.device, name: str) -> None:
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"device {name!r} was asked for, and there is no CUDA device")
        if (device.index or 0) >= torch.cuda.device_count():
            raise ConfigError(
                f"device {name!r} was asked for, and there are {torch.cuda.device_count()}"
            )
    elif device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(f"device {name!r} was asked for, and there is no MPS device")
    elif device.type not in ("cuda", "mps", "cpu"):
        raise ConfigError(f"device {name!r} must be auto, cpu, mps, cuda or cuda:N")
