"""The seven places where a plugin can add something.

Hooks register, objects run: each hook is called once, at start-up, with a registry to fill; what
it registered is then used through ordinary typed methods. A hook imports nothing heavy: the
``build`` functions that it registers may.

A plugin module also says which contract it was written for: ``VLMKIT_API = 1``.
"""

from typing import TYPE_CHECKING

import pluggy

from vlmkit.checkpoint import Checkpoint
from vlmkit.protocols import Engine, Sampler, Scheduler, Tokenizer, VisionEncoder
from vlmkit.registry import Registry

if TYPE_CHECKING:
    import click

API_VERSION = 1
PROJECT = "vlmkit"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def vlmkit_register_tokenizers(registry: Registry[Tokenizer]) -> None:
    """Offer tokenizers: ``registry.add(name, build, ...)`` once for each.

    A config selects one by ``[tokenizer] use = "name"``.
    """


@hookspec
def vlmkit_register_vision_encoders(registry: Registry[VisionEncoder]) -> None:
    """Offer vision encoders; a config selects one by ``[vision_encoder] use = "name"``."""


@hookspec
def vlmkit_register_engines(registry: Registry[Engine]) -> None:
    """Offer LLM engines; a config selects one by ``[engine] use = "name"``."""


@hookspec
def vlmkit_register_schedulers(registry: Registry[Scheduler]) -> None:
    """Offer schedulers; a config selects one by ``[scheduler] use = "name"``."""


@hookspec
def vlmkit_register_samplers(registry: Registry[Sampler]) -> None:
    """Offer samplers; a config selects one by ``[sampler] use = "name"``."""


@hookspec
def vlmkit_register_models(registry: Registry[Checkpoint]) -> None:
    """Offer models that a distribution carries or can fetch.

    ``build(context)`` returns the Checkpoint for ``context.reference``, downloading it if need
    be. A packaged model is asked for by its name; a source of many (a hub) says by
    ``cannot_serve(reference)`` which references are not its own.
    """


@hookspec
def vlmkit_register_commands(registry: "Registry[click.Command]") -> None:
    """Add commands to the ``vlmkit`` command line.

    ``build(context)`` returns the ``click.Command``, and is called when that command runs: there is
    no model, and no settings. The list of commands shows ``description``.
    """
