"""vlmkit: vision-language-model inference assembled from plugins.

import vlmkit

with vlmkit.load("demo") as model:
    print(model.generate("What is in this picture?", images=["shapes.png"]).text)

These few names are what programs and plugins start from; each is imported when it is first used,
so ``import vlmkit`` costs nothing. Plugin authors find the rest in :mod:`vlmkit.protocols`,
:mod:`vlmkit.registry` and :mod:`vlmkit.testing`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from vlmkit._version import __version__

if TYPE_CHECKING:
    from vlmkit.assembly import load
    from vlmkit.completion import Completion
    from vlmkit.errors import ConfigError, PluginError, RequestError, VlmkitError
    from vlmkit.hookspecs import API_VERSION, hookimpl
    from vlmkit.image import Image
    from vlmkit.message import Message
    from vlmkit.pipeline import Pipeline
    from vlmkit.request import Request
    from vlmkit.sampling import SamplingParams
    from vlmkit.stream import Stream

__all__ = [
    "API_VERSION",
    "Completion",
    "ConfigError",
    "Image",
    "Message",
    "Pipeline",
    "PluginError",
    "Request",
    "RequestError",
    "SamplingParams",
    "Stream",
    "VlmkitError",
    "__version__",
    "hookimpl",
    "load",
]

_HOMES = {
    "API_VERSION": "hookspecs",
    "Completion": "completion",
    "ConfigError": "errors",
    "Image": "image",
    "Message": "message",
    "Pipeline": "pipeline",
    "PluginError": "errors",
    "Request": "request",
    "RequestError": "errors",
    "SamplingParams": "sampling",
    "Stream": "stream",
    "VlmkitError": "errors",
    "hookimpl": "hookspecs",
    "load": "assembly",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vlmkit' has no attribute {name!r}")
    return getattr(importlib.import_module(f"vlmkit.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
