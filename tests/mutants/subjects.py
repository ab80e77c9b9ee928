"""What is mutated, and the contracts that have to notice."""

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CORE = "packages/vlmkit-core"
RUNNING = f"{CORE}/src/vlmkit/running"
MOCK = "plugins/vlmkit-mock"
BUILTIN = "packages/vlmkit-testing/tests/test_contracts.py"
MOCKS = f"{MOCK}/tests/test_mock_contracts.py"


class Subject(NamedTuple):
    """Components of one protocol.

    Attributes:
        protocol: its name.
        sources: files and folders, relative to the root.
        tests: subclasses of the protocol's contract.
        without: functions that do what no protocol states, such as a script of the mock.
    """

    protocol: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]
    without: tuple[str, ...] = ()

    def files(self) -> list[Path]:
        """Return the files of the sources."""
        found = [ROOT / each for each in self.sources]
        return [file for each in found for file in (sorted(each.glob("*.py")) or [each])]


ENGINE_KINDS = ("", "WithAtomicImages", "WithoutSharing", "OfSmallChunks", "WithAFullCache")
SCRIPTS = ("MockEngine._act", "MockEngine._logits", "SequenceState.progress_at")
OF_CALLERS = (  # they refuse steps that no caller may ask for
    "MockEngine._check_call",
    "MockEngine._state",
    "Cells.expect",
    "check_step",
    "_problem",
    "_rows_problem",
    "_features_problem",
    "_reads_prompt",
    "BlockPool.check_integrity",
)
FAMILIES = ("Qwen2Vl", "Mistral3", "GptOss", "Qwen3", "SpelledReasoning", "Mllama")
OF_ENCODERS = ("MockVisionEncoder.encode", "MockVisionEncoder.close", "_features", "_numbers")
SCHEDULER = ("scheduler", "step_plan", "waiting_queue", "prefix_sharing", "prefill_budget")
SUBJECTS = (
    Subject(
        "engine",
        (
            f"{MOCK}/src/vlmkit_mock/engine.py",
            f"{MOCK}/src/vlmkit_mock/sequence_state.py",
            f"{CORE}/src/vlmkit/kit/block_pool.py",
        ),
        tuple(f"{MOCKS}::TestMockEngine{kind}" for kind in ENGINE_KINDS),
        without=SCRIPTS + OF_CALLERS,
    ),
    Subject(
        "sampler",
        (f"{RUNNING}/sampling",),
        (
            f"{BUILTIN}::TestArraySampler",
            "tests/test_sampler_contract_on_torch.py::TestArraySamplerOnTorch",
        ),
    ),
    Subject(
        "scheduler",
        tuple(f"{RUNNING}/scheduling/{name}.py" for name in SCHEDULER),
        (
            f"{BUILTIN}::TestContinuousScheduler",
            f"{BUILTIN}::TestContinuousSchedulerWithSmallBudgets",
        ),
    ),
    Subject(
        "tokenizer",
        (
            f"{MOCK}/src/vlmkit_mock/tokenizer.py",
            f"{MOCK}/src/vlmkit_mock/vocabulary.py",
            f"{MOCK}/src/vlmkit_mock/vision_encoder.py",
        ),
        (f"{MOCKS}::TestMockTokenizer",),
        without=(*OF_ENCODERS, "MockVisionEncoder.__init__"),
    ),
    Subject(
        "tokenizer of checkpoints",
        ("plugins/vlmkit-hf/src/vlmkit_hf/text_side",),
        tuple(f"plugins/vlmkit-hf/tests/test_contract.py::Test{name}" for name in FAMILIES),
    ),
    Subject(
        "media encoder",
        (f"{MOCK}/src/vlmkit_mock/vision_encoder.py",),
        (f"{MOCKS}::TestMockVisionEncoder",),
        without=("", "slot_ids", "slot_of", "_filled", "_num_tokens", "_limit"),
    ),
    Subject(
        "media loader",
        (f"{RUNNING}/prompting/image_loader.py",),
        (f"{BUILTIN}::TestImageLoader",),
    ),
    Subject(
        "constraint",
        tuple(
            f"plugins/vlmkit-guidance/src/vlmkit_guidance/{name}.py"
            for name in ("compiler", "matcher", "forced", "tokens")
        ),
        ("plugins/vlmkit-guidance/tests/test_guidance_contract.py::TestGuidanceCompiler",),
    ),
)
