"""What is mutated, and the contracts that have to notice."""

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CORE, SERVER = "packages/vlmkit-core", "packages/vlmkit-server"
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


SCHEDULER = ("scheduler", "step_plan", "waiting_queue", "prefix_sharing", "prefill_budget")
SUBJECTS = (
    Subject(
        "engine",
        (
            f"{MOCK}/src/vlmkit_mock/engine.py",
            f"{MOCK}/src/vlmkit_mock/sequence_state.py",
            f"{CORE}/src/vlmkit/kit/block_pool.py",
        ),
        (f"{MOCKS}::TestMockEngine",),
        without=("MockEngine._act", "MockEngine._logits"),
    ),
    Subject("sampler", (f"{RUNNING}/sampling",), (f"{BUILTIN}::TestArraySampler",)),
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
        (f"{MOCK}/src/vlmkit_mock/tokenizer.py", f"{MOCK}/src/vlmkit_mock/vocabulary.py"),
        (f"{MOCKS}::TestMockTokenizer",),
    ),
    Subject(
        "tokenizer of checkpoints",
        ("plugins/vlmkit-hf/src/vlmkit_hf/text_side",),
        ("plugins/vlmkit-hf/tests/test_contract.py::TestQwen2Vl",),
    ),
    Subject(
        "media encoder",
        (f"{MOCK}/src/vlmkit_mock/vision_encoder.py",),
        (f"{MOCKS}::TestMockVisionEncoder",),
    ),
    Subject(
        "media loader",
        (f"{RUNNING}/prompting/image_loader.py",),
        (f"{BUILTIN}::TestImageLoader",),
    ),
    Subject(
        "observer",
        (f"{RUNNING}/observers/builtin.py",),
        (f"{BUILTIN}::TestCounters", f"{BUILTIN}::TestRequestLog"),
    ),
    Subject(
        "constraint",
        tuple(
            f"plugins/vlmkit-guidance/src/vlmkit_guidance/{name}.py"
            for name in ("compiler", "matcher", "forced", "tokens")
        ),
        ("plugins/vlmkit-guidance/tests/test_guidance_contract.py::TestGuidanceCompiler",),
    ),
    Subject(
        "monitor",
        tuple(
            f"plugins/vlmkit-monitor/src/vlmkit_monitor/{name}.py"
            for name in ("prometheus", "request_tally", "tally")
        ),
        ("plugins/vlmkit-monitor/tests/test_prometheus.py::TestPrometheusMonitor",),
    ),
    Subject(
        "proposer",
        (f"{RUNNING}/engine_loop/ngram.py",),
        (f"{CORE}/tests/test_drafts.py::TestNgramProposer",),
    ),
)
