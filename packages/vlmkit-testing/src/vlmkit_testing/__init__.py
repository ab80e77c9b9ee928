"""Contracts of all components: inherit one in your plugin's tests and provide its subject.

Public. Each protocol of :mod:`vlmkit.interfaces` and of :mod:`vlmkit_server.interfaces` has a class
here whose test methods pytest collects from your subclass. Contracts of the server's kinds need
vlmkit-server. Each name is imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vlmkit_testing.contracts.api_contract import ApiContract
    from vlmkit_testing.contracts.command_contract import CommandContract
    from vlmkit_testing.contracts.constraint_contract import ConstraintContract
    from vlmkit_testing.contracts.engine_contract import EngineContract
    from vlmkit_testing.contracts.engine_host import EngineHost
    from vlmkit_testing.contracts.media_encoder_contract import MediaEncoderContract
    from vlmkit_testing.contracts.media_loader_contract import MediaLoaderContract
    from vlmkit_testing.contracts.model_contract import ModelContract
    from vlmkit_testing.contracts.monitor_contract import MonitorContract
    from vlmkit_testing.contracts.observer_contract import ObserverContract
    from vlmkit_testing.contracts.pictures import awkward_pictures, picture
    from vlmkit_testing.contracts.proposer_contract import ProposerContract
    from vlmkit_testing.contracts.request_field_contract import RequestFieldContract
    from vlmkit_testing.contracts.runner_contract import RunnerContract
    from vlmkit_testing.contracts.sampler_contract import SamplerContract
    from vlmkit_testing.contracts.scheduler_contract import SchedulerContract
    from vlmkit_testing.contracts.sequences import new_sequence
    from vlmkit_testing.contracts.tokenizer_contract import TokenizerContract
    from vlmkit_testing.contracts.tool_source_contract import ToolSourceContract

__all__ = [
    "ApiContract",
    "CommandContract",
    "ConstraintContract",
    "EngineContract",
    "EngineHost",
    "MediaEncoderContract",
    "MediaLoaderContract",
    "ModelContract",
    "MonitorContract",
    "ObserverContract",
    "ProposerContract",
    "RequestFieldContract",
    "RunnerContract",
    "SamplerContract",
    "SchedulerContract",
    "TokenizerContract",
    "ToolSourceContract",
    "awkward_pictures",
    "new_sequence",
    "picture",
]

_MODULES = {
    "ApiContract": "api_contract",
    "CommandContract": "command_contract",
    "ConstraintContract": "constraint_contract",
    "EngineContract": "engine_contract",
    "EngineHost": "engine_host",
    "MediaEncoderContract": "media_encoder_contract",
    "MediaLoaderContract": "media_loader_contract",
    "ModelContract": "model_contract",
    "MonitorContract": "monitor_contract",
    "ObserverContract": "observer_contract",
    "ProposerContract": "proposer_contract",
    "RequestFieldContract": "request_field_contract",
    "RunnerContract": "runner_contract",
    "SamplerContract": "sampler_contract",
    "SchedulerContract": "scheduler_contract",
    "TokenizerContract": "tokenizer_contract",
    "ToolSourceContract": "tool_source_contract",
    "awkward_pictures": "pictures",
    "new_sequence": "sequences",
    "picture": "pictures",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.contracts.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        if error.name != "vlmkit_server":
            raise
        from vlmkit.kit.install_command import install_command

        raise ModuleNotFoundError(
            f"{name} is of a kind that vlmkit-server owns: {install_command('vlmkit-server')}",
            name=error.name,
        ) from None
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
