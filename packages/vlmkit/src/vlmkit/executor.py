"""Runs a step's tokens through engine and sampler, and finds who fails.

When a batch raises, its members run alone, so that one bad request never harms its neighbours.
Knows nothing of queues, texts and readers.
"""

from collections.abc import Sequence as Seq
from itertools import compress

from vlmkit.errors import EngineError, VlmkitError
from vlmkit.isolation import engine_error, isolated
from vlmkit.prompt import Prompt
from vlmkit.protocols import Engine, Sample, Sampler
from vlmkit.sampling import SamplingParams
from vlmkit.sequence import Sequence
from vlmkit.step import WorkItem


class Executor:
    """Computes steps.

    Args:
        engine: computes tokens.
        sampler: chooses tokens.
    """

    def __init__(self, engine: Engine, sampler: Sampler) -> None:
        self._engine = engine
        self._sampler = sampler

    def compute(self, items: Seq[WorkItem]) -> list[Sample | VlmkitError | None]:
        """Run items; return for each the token chosen where one is wanted, or what went wrong.

        Raises:
            EngineError: every item failed, and the engine can compute nothing else either.
        """
        results = isolated(self._compute_batch, items)
        if all(isinstance(result, Exception) for result in results):
            self._check_engine(next(r for r in results if isinstance(r, Exception)))
        message = "the engine failed on this request"
        return [engine_error(message, r) if isinstance(r, Exception) else r for r in results]

    def _compute_batch(self, items: Seq[WorkItem]) -> list[Sample | None]:
        """Run the engine and the sampler on some items."""
        logits = self._engine.forward(items)
        wanted = [item.wants_logits for item in items]
        sequences = [item.sequence for item in compress(items, wanted)]
        if logits.shape[0] != len(sequences):
            raise EngineError(f"the engine returned {logits.shape[0]} rows for {len(sequences)}")
        samples = self._sampler.sample(logits, sequences)
        if len(samples) != len(sequences):
            raise EngineError(f"the sampler returned {len(samples)} tokens for {len(sequences)}")
        if not all(isinstance(sample, Sample) for sample in samples):
            raise EngineError("the sampler returned something other than samples")
        rest = iter(samples)
        return [next(rest) if wants else None for wants in wanted]

    def _check_engine(self, cause: Exception) -> None:
        """Compute one token of a sequence of our own: is it the engine that fails, or requests?"""
        prompt = Prompt((0,))
        probe = Sequence("probe", prompt, SamplingParams(), seed=0, max_tokens=1, tenant="probe")
        try:
            probe.atomic_spans = self._engine.atomic_spans(prompt)
            if self._engine.admit(probe) is None:  # too full to tell
                return
            try:
                self._compute_batch([WorkItem(probe, 0, 1, wants_logits=True)])
            finally:
                self._engine.release(probe)
        except Exception:  # noqa: BLE001 - an engine may raise anything
            raise EngineError("the engine can compute nothing any more") from cause
