"""Deprecated names of modules, classes and functions, which work until version 0.3.

An old name gives the object with the new name, and a ``DeprecationWarning`` for each use.

``import vlmkit`` imports this module. It does without :mod:`importlib.abc`, which takes 2 MiB.
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

REMOVED_IN = "0.3"
MOVED = {
    "vlmkit.ask": "vlmkit.types",
    "vlmkit.ask.decode_cost": "vlmkit.image_files.decode_cost",
    "vlmkit.ask.decoder_child": "vlmkit.image_files.decoder_child",
    "vlmkit.ask.decoder_process": "vlmkit.image_files.decoder_process",
    "vlmkit.ask.file_type": "vlmkit.image_files.file_type",
    "vlmkit.ask.header": "vlmkit.image_files.header",
    "vlmkit.ask.iso_image": "vlmkit.image_files.iso_image",
    "vlmkit.ask.isolated": "vlmkit.image_files.isolated",
    "vlmkit.ask.jpeg": "vlmkit.image_files.jpeg",
    "vlmkit.ask.pixels": "vlmkit.image_files.pixels",
    "vlmkit.ask.place": "vlmkit.types.grounding",
    "vlmkit.ask.png": "vlmkit.image_files.png",
    "vlmkit.ask.structure": "vlmkit.image_files.structure",
    "vlmkit.ask.tiff": "vlmkit.image_files.tiff",
    "vlmkit.ask.too_complex": "vlmkit.image_files.too_complex",
    "vlmkit.ask.webp": "vlmkit.image_files.webp",
    "vlmkit.kit.call_formats": "vlmkit.kit.tool_call_formats",
    "vlmkit.kit.call_grammar": "vlmkit.formats.tool_call_grammar",
    "vlmkit.kit.call_reader": "vlmkit.kit.tool_call_parser",
    "vlmkit.kit.channel_grammar": "vlmkit.formats.harmony_grammar",
    "vlmkit.kit.channel_reader": "vlmkit.kit.harmony_parser",
    "vlmkit.kit.chat_dicts": "vlmkit.inputs.conversations",
    "vlmkit.kit.constraint_limits": "vlmkit.running.constraints.limits",
    "vlmkit.kit.generation_config": "vlmkit.checkpoints.generation_config",
    "vlmkit.kit.holdings": "vlmkit.running.scheduling.eviction",
    "vlmkit.kit.image_source": "vlmkit.inputs.images",
    "vlmkit.kit.json_scan": "vlmkit.formats.partial_tool_call",
    "vlmkit.kit.lark_rules": "vlmkit.formats.lark_rules",
    "vlmkit.kit.media_trial": "vlmkit.kit.vision_selfcheck",
    "vlmkit.kit.model_folder": "vlmkit.checkpoints.folder",
    "vlmkit.kit.notebook_stages": "vlmkit.assembly.load",
    "vlmkit.kit.packaged_model": "vlmkit.checkpoints.package",
    "vlmkit.kit.place_formats": "vlmkit.kit.grounding_formats",
    "vlmkit.kit.places": "vlmkit.running.engine_loop.grounding",
    "vlmkit.kit.plain_reader": "vlmkit.kit.plain_parser",
    "vlmkit.kit.pooling": "vlmkit.checkpoints.pooling",
    "vlmkit.kit.public_address": "vlmkit.kit._public_address",
    "vlmkit.kit.reasoning_reader": "vlmkit.kit.reasoning_parser",
    "vlmkit.kit.request_fields": "vlmkit.running.prompting.request_fields",
    "vlmkit.kit.sampler_claims": "vlmkit.running.pipeline.pipeline",
    "vlmkit.kit.schema_reduction": "vlmkit.running.constraints.schema_reduction",
    "vlmkit.kit.setting_values": "vlmkit.plugins.setting_values",
    "vlmkit.kit.tool_schemas": "vlmkit.formats.tool_schemas",
    "vlmkit.kit.trial_notes": "vlmkit.kit.selfcheck_records",
    "vlmkit.kit.written_call": "vlmkit.formats.partial_tool_call",
    "vlmkit.pipeline": "vlmkit.running.pipeline.pipeline",
    "vlmkit.seams": "vlmkit.interfaces",
    "vlmkit.seams.monitor": "vlmkit_server.interfaces.monitor",
    "vlmkit.seams.place_format": "vlmkit.interfaces.grounding_format",
    "vlmkit.seams.tool_source": "vlmkit_server.interfaces.tool_source",
    "vlmkit.server": "vlmkit_server",
    "vlmkit.server_parts": "vlmkit_server.commands.components",
    "vlmkit.settings.fleet": "vlmkit_server.settings.fleet",
    "vlmkit.settings.limits": "vlmkit_server.settings.limits",
    "vlmkit.settings.server": "vlmkit_server.settings.server",
    "vlmkit.sources": "vlmkit.assembly.sources",
    "vlmkit.testing": "vlmkit_testing",
}
"""The new names of moved modules, by their old names; submodules move with their package."""
RENAMED = {
    "vlmkit.assembly.load": {
        "NotebookStages": "NotebookProgress",
        "notebook_stages": "notebook_progress",
    },
    "vlmkit.formats.harmony_grammar": {"channel_grammar": "harmony_grammar"},
    "vlmkit.formats.partial_tool_call": {
        "WrittenCall": "PartialToolCall",
        "JsonWritten": "JsonToolCall",
        "NamedWritten": "NamedToolCall",
        "TaggedWritten": "TaggedToolCall",
    },
    "vlmkit.formats.tool_call_grammar": {"call_grammar": "tool_call_grammar"},
    "vlmkit.interfaces.engine": {"MediaTrial": "VisionSelfCheck"},
    "vlmkit.interfaces.grounding_format": {
        "PlaceFormat": "GroundingFormat",
        "JsonPlaces": "JsonGrounding",
        "MarkedPlaces": "MarkedGrounding",
    },
    "vlmkit.kit.harmony_parser": {"ChannelReader": "HarmonyParser"},
    "vlmkit.kit.objection": {"together": "combined", "told": "with_hint"},
    "vlmkit.kit.plain_parser": {"PlainReader": "PlainParser"},
    "vlmkit.kit.reasoning_parser": {"ReasoningReader": "ReasoningParser"},
    "vlmkit.kit.selfcheck_records": {"place": "record_path"},
    "vlmkit.kit.tool_call_parser": {"CallReader": "ToolCallParser"},
    "vlmkit.plugins.registry": {"tell_nobody": "ignore_progress"},
    "vlmkit.running.engine_loop.grounding": {"find_places": "find_regions"},
    "vlmkit.running.scheduling.eviction": {"Holdings": "EvictionPolicy"},
    "vlmkit.types.grounding": {"Place": "GroundedRegion"},
}
"""The new names of classes and functions by their old names, for each module by its new name."""
DISTRIBUTIONS = {"vlmkit_server": "vlmkit-server", "vlmkit_testing": "vlmkit-testing"}


class OldName(DeprecationWarning):
    """A module, class or function was used by an old name.

    Attributes:
        old: the old name.
        new: the new name.
    """

    def __init__(self, old: str, new: str) -> None:
        super().__init__(f"{old} is {new} now; vlmkit {REMOVED_IN} removes the old name")
        self.old = old
        self.new = new


def new_name(name: str) -> str | None:
    """Return the new name of a module; None if it was not moved."""
    parts = name.split(".")
    for end in range(len(parts), 1, -1):
        if moved := MOVED.get(".".join(parts[:end])):
            inside = parts[end:]
            if moved == "vlmkit_testing" and inside:
                inside = ["contracts", *inside]
            return ".".join([moved, *inside])
    return None


class MovedModules:
    """Finds modules by their old names; must be the first finder.

    An old package name has the folder of the new one. An earlier finder would therefore load its
    submodules a second time.

    Args:
        install_command: returns the command that installs a distribution.
    """

    def __init__(self, install_command: Callable[[str], str]) -> None:
        self._install_command = install_command

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - as Python calls it
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return the spec of a module with an old name; None for any other module."""
        if not name.startswith("vlmkit."):
            return None
        moved = new_name(name)
        if moved is None:
            return None
        alias: Any = _Alias(moved, self._install_command)
        return ModuleSpec(name, alias, is_package=True)


class _Alias:
    """Loads the module with the new name under the old name."""

    def __init__(self, moved: str, install_command: Callable[[str], str]) -> None:
        self._moved = moved
        self._install_command = install_command

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python create an empty module, which ``exec_module`` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Replace the module with the one of the new name, with its old names of classes.

        Raises:
            ModuleNotFoundError: its distribution is not installed; has the install command.
        """
        import importlib.util

        package = self._moved.partition(".")[0]
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(
                f"{module.__name__} is {self._moved} now, of {DISTRIBUTIONS[package]}: "
                f"{self._install_command(DISTRIBUTIONS[package])}",
                name=package,
            )
        warnings.warn(OldName(module.__name__, self._moved), stacklevel=2)
        moved = importlib.import_module(self._moved)
        for old, new in RENAMED.get(self._moved, {}).items():
            setattr(moved, old, getattr(moved, new))
        sys.modules[module.__name__] = moved


def renamed(module: str, name: str) -> Any:
    """Return the object that an old name of a public module means, with a warning.

    Modules with renamed classes or functions call it in their ``__getattr__``.

    Raises:
        AttributeError: the module has no such name.
    """
    new = RENAMED.get(module, {}).get(name)
    if new is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    warnings.warn(OldName(f"{module}.{name}", f"{module}.{new}"), stacklevel=3)
    return getattr(sys.modules[module], new)


def forget(old: str) -> None:
    """Remove an old module name from ``sys.modules``, so that its next import warns again."""
    sys.modules.pop(old, None)
    package, _, name = old.rpartition(".")
    if package in sys.modules:
        vars(sys.modules[package]).pop(name, None)
