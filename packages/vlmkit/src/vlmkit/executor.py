"""Runs a step's images and tokens through encoder, engine and sampler, and finds who fails.

When a batch raises, its members run alone, so that one bad request never harms its neighbours. What
a library says goes to the log; an answer gets an error of our own. Knows nothing of queues, texts
and readers.
"""

import logging
from collections.abc import Callable, Sequence as Seq
from itertools import compress
from typing import TypeVar

from vlmkit.errors import EngineError, VlmkitError
from vlmkit.feature_cache import FeatureCache
from vlmkit.prompt import Prompt
from vlmkit.protocols import Engine, ImageFeatures, Sample, Sampler, VisionEncoder
from vlmkit.sampling import SamplingParams
from vlmkit.sequence import Sequence
from vlmkit.step import EncodeItem, Step, WorkItem

log = logging.getLogger(__name__)

M = TypeVar("M")
R = TypeVar("R")


class Executor:
    """Computes steps.

    Args:
        engine: computes tokens.
        encoder: encodes images; None for a text model.
        sampler: chooses tokens.
        features: the image feature cache.
    """

    def __init__(
        self,
        engine: Engine,
        encoder: VisionEncoder | None,
        sampler: Sampler,
        features: FeatureCache,
    ) -> None:
        self._engine = engine
        self._encoder = encoder
        self._sampler = sampler
        self._features = features
        self.num_images_encoded = 0

    def encode(self, step: Step) -> dict[Sequence, VlmkitError]:
        """Put features where the engine looks for them; return the sequences that fail by it.

        Each distinct image is encoded once, all in one batch if they go well.
        """
        missing: dict[tuple[str, bytes], list[EncodeItem]] = {}
        for item in step.encodes:
            slot = item.sequence.prompt.images[item.image]
            key = (item.sequence.tenant, slot.digest)
            if (features := self._features.get(*key)) is not None:
                item.sequence.features[item.image] = features
            else:
                missing.setdefault(key, []).append(item)
        failures: dict[Sequence, VlmkitError] = {}
        results = _isolated(self._encode_batch, [group[0] for group in missing.values()])
        for (key, group), result in zip(missing.items(), results, strict=True):
            if isinstance(result, Exception):
                error = engine_error("the vision encoder failed on this image", result)
                failures.update((item.sequence, error) for item in group)
                continue
            self.num_images_encoded += 1
            self._features.put(*key, result)
            for item in group:
                item.sequence.features[item.image] = result
        return failures

    def compute(self, items: Seq[WorkItem]) -> list[Sample | VlmkitError | None]:
        """Run items; return for each the token chosen where one is wanted, or what went wrong.

        Raises:
            EngineError: every item failed, and the engine can compute nothing else either.
        """
        results = _isolated(self._compute_batch, items)
        if all(isinstance(result, Exception) for result in results):
            self._check_engine(next(r for r in results if isinstance(r, Exception)))
        message = "the engine failed on this request"
        return [engine_error(message, r) if isinstance(r, Exception) else r for r in results]

    def _encode_batch(self, items: Seq[EncodeItem]) -> list[ImageFeatures]:
        if not items:
            return []
        if self._encoder is None:
            raise EngineError("this pipeline has no vision encoder")
        slots = [item.sequence.prompt.images[item.image] for item in items]
        features = list(self._encoder.encode(slots))
        found, wanted = [f.num_tokens for f in features], [slot.num_features for slot in slots]
        if found != wanted:
            raise EngineError(f"the vision encoder returned {found} features, expected {wanted}")
        return features

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


def engine_error(message: str, cause: Exception) -> VlmkitError:
    """Keep the library's words out of the answer and in the log."""
    if isinstance(cause, VlmkitError):
        return cause
    log.error("%s", message, exc_info=cause)
    error = EngineError(message, hint="see the server's log")
    error.__cause__ = cause
    return error


def _isolated(run: Callable[[Seq[M]], list[R]], members: Seq[M]) -> list[R | Exception]:
    """Run a batch; if it raises, run its members alone to find out which of them fail."""
    try:
        return list(run(members))
    except Exception as error:  # noqa: BLE001 - a component may raise anything
        if len(members) == 1:
            return [error]
    return [result for member in members for result in _isolated(run, [member])]
