"""Facts about this machine for ``vlmkit doctor``, found without heavy imports."""

import importlib.metadata
import platform
import sys
from pathlib import Path

from vlmkit._version import __version__
from vlmkit.errors import PluginError
from vlmkit.kit import memory, processor
from vlmkit.kit.cores import num_cores
from vlmkit.kit.one_line import named, text_of
from vlmkit.plugins.loader import Plugins

LIBRARIES = (
    "numpy",
    "pillow",
    "msgspec",
    "litestar",
    "torch",
    "transformers",
    "tokenizers",
    "onnxruntime",
)
CPU_FEATURES = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "i8mm",
    "bf16",
    "sve",
)


def facts(plugins: Plugins) -> dict[str, str]:
    """Return the facts by name; unknown values are ``unknown``."""
    libraries = {name: _version(name) for name in LIBRARIES}
    return {
        "vlmkit": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu cores": str(num_cores()),
        "cpu features": ", ".join(_cpu_features()) or "unknown",
        "memory": _memory(),
        "devices": ", ".join(_devices()) or "cpu only",
        "support": _support(),
        **{name: version or "not installed" for name, version in libraries.items()},
        **{p.source: p.version for p in plugins.found if p.version and not p.error},
        **{name: f"could not be loaded: {_why(error)}" for name, error in plugins.broken.items()},
    }


def _why(error: Exception) -> str:
    return text_of(error) if isinstance(error, PluginError) else named(error)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_features() -> list[str]:
    found = processor.features()
    return [feature for feature in CPU_FEATURES if feature in found]


def _memory() -> str:
    if (num_bytes := memory.total_bytes()) is None:
        return "unknown"
    limit = memory.limit_bytes()
    if limit is not None and limit < num_bytes:
        return f"{limit / 2**30:.1f} GiB (a limit; the machine has {num_bytes / 2**30:.1f})"
    return f"{num_bytes / 2**30:.1f} GiB"


def _devices() -> list[str]:
    """Return the accelerators with an installed driver, as the system lists them."""
    found = []
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        models = [line for line in _read(file).splitlines() if line.startswith("Model:")]
        found.append(models[0].partition(":")[2].strip() if models else "an NVIDIA GPU")
    if not found and Path("/dev/nvidia0").exists():
        found.append("an NVIDIA GPU")
    if Path("/dev/kfd").exists():
        found.append("an AMD GPU")
    if sys.platform == "darwin" and platform.machine() == "arm64":
        found.append("Apple GPU (MPS)")
    return found


def _support() -> str:
    """Return whether the project was tested on such a machine; the README has the details."""
    is_run = sys.platform == "linux" and platform.machine() == "x86_64"
    text = "tested on such systems" if is_run else "written for such systems, and never run on one"
    return f"{text}; never run on a real GPU" if _devices() else text


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
