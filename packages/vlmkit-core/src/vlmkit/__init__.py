"""vlmkit: vision-language-model inference assembled from plugins.

import vlmkit

with vlmkit.load("demo") as model:
    print(model.generate("What is in this picture?", images=["shapes.png"]).text)

Programs and plugins start from the names in this module. Each is imported on first use, so
``import vlmkit`` is cheap. Also public are :mod:`vlmkit.types`, :mod:`vlmkit.interfaces`,
:mod:`vlmkit.settings`, :mod:`vlmkit.kit`, :mod:`vlmkit.image_files` and :mod:`vlmkit.errors`. In
:mod:`vlmkit.plugins`, the modules ``hookspecs``, ``kinds`` and ``registry`` are public. Everything
else may change with any version.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from vlmkit._version import __version__
from vlmkit.deprecated import MovedModules

if TYPE_CHECKING:
    from vlmkit.assembly.load import fetch, load
    from vlmkit.errors import ConfigError, PluginError, RequestError, VlmkitError
    from vlmkit.model import Model
    from vlmkit.plugins.hookspecs import API_VERSION, hookimpl
    from vlmkit.running.pipeline.pipeline import Pipeline
    from vlmkit.running.sampling.sampler import ArraySampler
    from vlmkit.running.scheduling.scheduler import ContinuousScheduler
    from vlmkit.types.completion import Completion
    from vlmkit.types.image import Image
    from vlmkit.types.message import Message
    from vlmkit.types.request import Request
    from vlmkit.types.sampling import SamplingParams

__all__ = [
    "API_VERSION",
    "ArraySampler",
    "Completion",
    "ConfigError",
    "ContinuousScheduler",
    "Image",
    "Message",
    "Model",
    "Pipeline",
    "PluginError",
    "Request",
    "RequestError",
    "SamplingParams",
    "VlmkitError",
    "__version__",
    "fetch",
    "hookimpl",
    "load",
]


def _install_command(distribution: str) -> str:
    from vlmkit.kit.install_command import install_command

    return install_command(distribution)


sys.meta_path.insert(0, MovedModules(_install_command))

_HOMES = {
    "API_VERSION": "plugins.hookspecs",
    "ArraySampler": "running.sampling.sampler",
    "Completion": "types.completion",
    "ConfigError": "errors",
    "ContinuousScheduler": "running.scheduling.scheduler",
    "Image": "types.image",
    "Message": "types.message",
    "Model": "model",
    "Pipeline": "running.pipeline.pipeline",
    "PluginError": "errors",
    "Request": "types.request",
    "RequestError": "errors",
    "SamplingParams": "types.sampling",
    "VlmkitError": "errors",
    "fetch": "assembly.load",
    "hookimpl": "plugins.hookspecs",
    "load": "assembly.load",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vlmkit' has no attribute {name!r}")
    return getattr(importlib.import_module(f"vlmkit.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
