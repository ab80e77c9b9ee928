"""Chooses the device and the precision, and knows what is particular to a kind of device.

How much memory a cache may take, and what MPS cannot do: compute for two threads at once. What a
device's errors mean is the business of ``faults``.
"""

import logging
import threading
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
FREE_FRACTION = 0.8  # of a device's free memory; the rest is for activations and other programs
MPS_RELEASE = (2, 13)  # of torch; earlier ones attend wrong over views and grouped heads there

_mps_turn = threading.RLock()  # one for the process, as is MPS's queue of commands


def choose_device(settings: ComputeSettings) -> torch.device:
    """Return the device to run on, and let torch use as many CPU threads as was asked for.

    It is named as tensors name it: with its number, but for the CPU, which has none.

    Raises:
        ConfigError: the device is not there, or its name means nothing to torch.
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
    """Return the precision to compute in on a device that is no CPU; see ``sizing`` for CPUs.

    Args:
        settings: what was asked for; ``auto`` follows the checkpoint.
        own: the checkpoint's precision, if it says.
    """
    if settings.dtype != "auto":
        return DTYPES[settings.dtype]
    if own is None or not own.is_floating_point or own.itemsize > 4:
        return torch.float32
    return own


def cache_bytes(device: torch.device) -> int:
    """Return how much memory a cache may take when the user does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * FREE_FRACTION)
    if device.type == "mps":
        used = torch.mps.driver_allocated_memory()
        return int(max(GIB, torch.mps.recommended_max_memory() - used) * FREE_FRACTION / 2)
    return sizing.CACHE_BYTES


def call_bytes(device: torch.device) -> int:
    """Return how many bytes are copied in the time that one more call of attention takes."""
    return CALL_BYTES.get(device.type, CALL_BYTES_OF_GPU)


def is_mps(device: torch.device) -> bool:
    """Tell whether a device is Apple's GPU."""
    return device.type == "mps"


def computes_in_teams(device: torch.device) -> bool:
    """Tell whether each thread that computes on a device gets threads of its own for it."""
    return device.type == "cpu" and not is_mps(device)


def alone(device: torch.device) -> AbstractContextManager[object]:
    """Return what lets one thread at a time compute on a device, where two would end the process.

    That is MPS (pytorch#197805). Elsewhere nothing is held.
    """
    return _mps_turn if is_mps(device) else nullcontext()


def handed_over(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor for whoever computes on without asking for a turn: not on MPS."""
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
    """Say why MPS cannot be used; None where it can."""
    if not torch.backends.mps.is_available():
        return "there is no MPS device"
    if release_of(torch.__version__) < MPS_RELEASE:
        return f"torch {torch.__version__} computes wrong there, 2.13 is needed"
    return None


def _check_present(device: torch.device, name: str) -> None:
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"device {name!r} was asked for, and there is no CUDA device")
        if (device.index or 0) >= torch.cuda.device_count():
            raise ConfigError(
                f"device {name!r} was asked for, and there are {torch.cuda.device_count()}"
            )
    elif device.type == "mps":
        if reason := _why_not_mps():
            raise ConfigError(f"device {name!r} was asked for, and {reason}")
    elif device.type != "cpu":
        raise ConfigError(f"device {name!r} must be auto, cpu, mps, cuda or cuda:N")
