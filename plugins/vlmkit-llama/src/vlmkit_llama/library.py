"""Finds and opens the library llama.cpp, and compares it with the declarations of this plugin.

A library has no usable version number. Its default parameters and the sizes of its structures are
compared instead: with others, a call would read and write the wrong memory. Loads no model.
"""

import ctypes
import functools
import importlib.metadata
import importlib.util
import logging
import os
import platform
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlmkit.errors import ConfigError
from vlmkit.kit.install_command import install_command
from vlmkit.kit.one_line import one_line
from vlmkit_llama import declarations as c

log = logging.getLogger(__name__)

PACKAGE = "xllamacpp"
NATIVE_HINT = "build llama.cpp on this machine, and set engine.library to its libllama"
ERROR_LEVEL = 4  # GGML_LOG_LEVEL_ERROR
WARN_LEVEL = 3
FILLS = (0xCC, 0x55)
MEDIA_PARAMS = (c.MediaParams, c.MEDIA_DEFAULTS)
BACKTRACE = "GGML_NO_BACKTRACE"
"""With it, an abort ends the process at once. Without it, a debugger is started first."""


class Library:
    """An open library.

    Args:
        path: its file.

    Attributes:
        functions: the library, with declared functions.
        errors: its last error messages.

    Raises:
        ConfigError: it cannot be opened, or is another build than this plugin is made for.
    """

    def __init__(self, path: Path) -> None:
        os.environ.setdefault(BACKTRACE, "1")
        hint = "set engine.library to the libllama of a build of llama.cpp"
        self.functions: Any = _opened(path, hint)
        _declare(self.functions, c.FUNCTIONS, path)
        _compare(self.functions, path)
        self.errors: deque[str] = deque(maxlen=4)
        self._path = path
        self._callback = c.LOG_CALLBACK(self._log)
        self.functions.llama_log_set(self._callback, None)
        self.functions.llama_backend_init()

    @functools.cached_property
    def media(self) -> Any:
        """The functions of images, with declarations: of this file, or of the one beside it.

        Raises:
            ConfigError: no such file is there, or it is another build.
        """
        functions, path = self.functions, self._path
        if not hasattr(functions, "mtmd_init_from_file"):
            path = path.with_name(path.name.replace("llama", "mtmd", 1))
            functions = _opened(path, "build the target mtmd of llama.cpp, too")
        _declare(functions, c.MEDIA_FUNCTIONS, path)
        _compare_params(functions, "mtmd_context_params_default", *MEDIA_PARAMS, path)
        functions.mtmd_log_set(self._callback, None)
        return functions

    @property
    def features(self) -> tuple[str, ...]:
        """The CPU features that the library was built with, such as ``AVX2``."""
        text = self.functions.llama_print_system_info().decode("utf-8", "replace")
        pairs = (part.rpartition(":")[2].partition("=") for part in text.split("|"))
        return tuple(name.strip() for name, _, value in pairs if value.strip() == "1")

    def _log(self, level: int, text: bytes | None, _: object) -> None:
        """Log a message of the library, which speaks of models and memory, never of prompts."""
        message = one_line((text or b"").decode("utf-8", "replace").strip())
        if not message:
            return
        if level == ERROR_LEVEL:
            self.errors.append(message)
        log.log(logging.INFO if level in (WARN_LEVEL, ERROR_LEVEL) else logging.DEBUG, message)


@functools.cache
def open_library(file: str) -> Library:
    """Return a library; each is opened once in a process.

    Args:
        file: its file; empty is that of the package xllamacpp.

    Raises:
        ConfigError: it is absent, cannot be opened, or is another build.
    """
    if file:
        return Library(Path(file))
    path, version = packaged(), importlib.metadata.version(PACKAGE)
    if version not in c.TESTED:
        log.warning("%s %s is not among the tested versions: %s", PACKAGE, version, c.TESTED)
    return Library(path)


def packaged() -> Path:
    """Return the library in the package xllamacpp, which is not imported.

    Raises:
        ConfigError: the package is absent, or has no library.
    """
    spec = importlib.util.find_spec(PACKAGE)
    folders = (spec.submodule_search_locations or []) if spec else []
    for folder in map(Path, folders):
        for pattern in ("xllamacpp*.so", "xllamacpp*.pyd"):
            if found := sorted(folder.glob(pattern)):
                return found[0]
    raise ConfigError(
        "the library llama.cpp is not installed",
        hint=f"{install_command('vlmkit-llama[cpu]')}, or set engine.library",
    )


def lacks_vnni(features: tuple[str, ...]) -> bool:
    """Return whether this processor has integer products that a build does not use."""
    if any("VNNI" in feature for feature in features):
        return False
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        return False
    return "avx512_vnni" in flags or "avx_vnni" in flags


def _opened(path: Path, hint: str) -> Any:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise ConfigError(
            f"the library {path.name!r} cannot be opened: {one_line(str(error))}", hint=hint
        ) from error


def _declare(functions: Any, declared: Mapping[str, c.Signature], path: Path) -> None:
    try:
        for name, (result, arguments) in declared.items():
            function = getattr(functions, name)
            function.restype, function.argtypes = result, list(arguments)
    except AttributeError as error:
        raise _unfit(path, f"it lacks a function: {one_line(str(error))}") from error


def _compare(functions: Any, path: Path) -> None:
    """Compare default parameters, and sizes where they can be measured.

    Raises:
        ConfigError: one differs.
    """
    for name, kind, defaults in (
        ("llama_model_default_params", c.ModelParams, c.MODEL_DEFAULTS),
        ("llama_context_default_params", c.ContextParams, c.CONTEXT_DEFAULTS),
    ):
        _compare_params(functions, name, kind, defaults, path)
    batch = functions.llama_batch_init(1, 0, 1)
    is_like = not batch.embd and all((batch.token, batch.pos, batch.n_seq_id, batch.logits))
    if not is_like or batch.n_tokens:
        raise _unfit(path, "llama_batch has other fields")
    functions.llama_batch_free(batch)


def _compare_params(
    functions: Any,
    name: str,
    kind: type[ctypes.Structure],
    defaults: Mapping[str, Any],
    path: Path,
) -> None:
    """Compare the default parameters that a function returns, and their size.

    Raises:
        ConfigError: one differs.
    """
    _compare_defaults(getattr(functions, name)().params, defaults, path)
    size, expected = _num_written(functions, name), ctypes.sizeof(kind)
    if size is not None and -(-size // 8) * 8 != expected:
        raise _unfit(path, f"{name} writes {size} bytes, not {expected}")


def _compare_defaults(params: Any, defaults: Mapping[str, Any], path: Path) -> None:
    for field, *_ in params._fields_:
        value = getattr(params, field) or 0
        if value != defaults.get(field, 0):
            raise _unfit(path, f"its default of {field} is {value}, not {defaults.get(field, 0)}")


def _num_written(functions: Any, name: str) -> int | None:
    """Return up to which byte a function writes its result; None on unknown processors.

    On x86-64 the caller passes a pointer to the result as the first argument.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return None
    address = ctypes.cast(getattr(functions, name), ctypes.c_void_p).value
    if address is None:
        return None
    call = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)
    results = []
    for fill in FILLS:
        room = (ctypes.c_uint8 * (ctypes.sizeof(c.ContextParams) + c.SPARE_BYTES))(
            *[fill] * (ctypes.sizeof(c.ContextParams) + c.SPARE_BYTES)
        )
        call(ctypes.addressof(room))
        results.append(bytes(room))
    return max((i + 1 for i, (a, b) in enumerate(zip(*results, strict=True)) if a == b), default=0)


def _unfit(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"the library {path.name!r} is a build of llama.cpp that is not supported: {why}",
        hint=f"install {PACKAGE}=={c.TESTED[-1]}, or build llama.cpp as of then",
    )
