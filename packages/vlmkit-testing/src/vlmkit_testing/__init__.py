"""Contracts that every component must keep: inherit one in your plugin's tests and fill it in.

Public. Each protocol of :mod:`vlmkit.seams` has a class here whose test methods pytest collects
from your subclass. Needs pytest and hypothesis (the extra ``vlmkit-testing``); the core never
imports this package, but for ``vlmkit plugins check``.
"""

try:
    import hypothesis  # noqa: F401 - asked for here, and used by nearly all contracts
    import pytest
except ModuleNotFoundError as error:
    from vlmkit.kit.install_command import install_command

    brings = install_command("vlmkit-testing")
    raise ModuleNotFoundError(
        f"no module named {error.name!r}, which contracts need: {brings}",
        name=error.name,
    ) from None

pytest.register_assert_rewrite(
    *(
        f"vlmkit_testing.{name}"
        for name in (
            "command_contract",
            "constraint_contract",
            "engine_contract",
            "engine_host",
            "engine_life_contract",
            "engine_prefix_contract",
            "engine_room_contract",
            "engine_rows_contract",
            "engine_subject",
            "engine_sequence",
            "media_encoder_contract",
            "media_loader_contract",
            "model_contract",
            "monitor_contract",
            "observer_contract",
            "proposer_contract",
            "runner_contract",
            "chance",
            "sampler_batch_contract",
            "sampler_chance_contract",
            "sampler_contract",
            "sampler_params_contract",
            "scheduler_contract",
            "scheduler_rules",
            "scheduler_sharing_contract",
            "scheduler_simulation",
            "scheduler_subject",
            "scheduler_turns_contract",
            "strict_cache",
            "tokenizer_contract",
            "tokenizer_image_sizes_contract",
            "tokenizer_media_contract",
            "tokenizer_prompt_contract",
            "tokenizer_reader_contract",
            "tokenizer_subject",
            "tool_source_contract",
        )
    )
)

from vlmkit_testing.contracts.command_contract import (  # noqa: E402 - after the rewrite hook
    CommandContract,
)
from vlmkit_testing.contracts.constraint_contract import ConstraintContract  # noqa: E402
from vlmkit_testing.contracts.engine_contract import EngineContract  # noqa: E402
from vlmkit_testing.contracts.engine_host import EngineHost  # noqa: E402
from vlmkit_testing.contracts.media_encoder_contract import MediaEncoderContract  # noqa: E402
from vlmkit_testing.contracts.media_loader_contract import MediaLoaderContract  # noqa: E402
from vlmkit_testing.contracts.model_contract import ModelContract  # noqa: E402
from vlmkit_testing.contracts.monitor_contract import MonitorContract  # noqa: E402
from vlmkit_testing.contracts.observer_contract import ObserverContract  # noqa: E402
from vlmkit_testing.contracts.pictures import awkward_pictures, picture  # noqa: E402
from vlmkit_testing.contracts.proposer_contract import ProposerContract  # noqa: E402
from vlmkit_testing.contracts.runner_contract import RunnerContract  # noqa: E402
from vlmkit_testing.contracts.sampler_contract import SamplerContract  # noqa: E402
from vlmkit_testing.contracts.scheduler_contract import SchedulerContract  # noqa: E402
from vlmkit_testing.contracts.sequences import new_sequence  # noqa: E402
from vlmkit_testing.contracts.tokenizer_contract import TokenizerContract  # noqa: E402
from vlmkit_testing.contracts.tool_source_contract import ToolSourceContract  # noqa: E402

__all__ = [
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
    "RunnerContract",
    "SamplerContract",
    "SchedulerContract",
    "TokenizerContract",
    "ToolSourceContract",
    "awkward_pictures",
    "new_sequence",
    "picture",
]
