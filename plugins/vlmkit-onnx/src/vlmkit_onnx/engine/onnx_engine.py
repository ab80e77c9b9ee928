"""The LLM engine: one decoder graph over slots of a cache, driven by work items.

Implements ``vlmkit.interfaces.engine.Engine``. Selects no work items and samples no tokens.
"""

from collections.abc import Sequence as Seq

import numpy as np

from vlmkit.errors import CheckpointError, OutOfMemory, RequestError
from vlmkit.interfaces.cache_events import CacheListener
from vlmkit.interfaces.engine import Admission, EngineLimits
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.prompt import Prompt, PromptPlan
from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit.interfaces.view import SequenceView
from vlmkit.kit.vision_selfcheck import answered
from vlmkit_onnx.decoders.decoder import Decoder
from vlmkit_onnx.engine.model_runner import ModelRunner
from vlmkit_onnx.prompts.embeddings import Embeddings
from vlmkit_onnx.prompts.families import Family
from vlmkit_onnx.prompts.prompt_inputs import read_prompt
from vlmkit_onnx.self_checks.export_sample import HasExportSample
from vlmkit_onnx.sessions.session import is_out_of_memory
from vlmkit_onnx.slots.slot_manager import SlotManager


class OnnxEngine:
    """Runs one decoder graph.

    Args:
        decoder: computes tokens of slots.
        embeddings: turns token ids into rows; None if the decoder takes token ids.
        family: positions images and tokens.
        slots: of the decoder.
        limits: of this engine.
        sliding_window: tokens that layers with a window see, if the host builds the masks.
        is_checked: whether the engine answers about images when its model loads.
    """

    def __init__(
        self,
        decoder: Decoder,
        embeddings: Embeddings | None,
        family: Family,
        slots: SlotManager,
        limits: EngineLimits,
        sliding_window: int | None = None,
        *,
        is_checked: bool = True,
    ) -> None:
        self._decoder = decoder
        self._family = family
        self._slots = slots
        self._limits = limits
        self._is_checked = is_checked
        self._runner = ModelRunner(decoder, embeddings, slots, sliding_window)

    @property
    def limits(self) -> EngineLimits:
        """What this engine can do; constant."""
        return self._limits

    @property
    def num_free_tokens(self) -> int:
        """Tokens that no admitted sequence has room for."""
        return self._slots.capacity_tokens - self._slots.num_owned

    def set_cache_listener(self, listener: CacheListener) -> None:
        """Report what slots hold to a listener, in blocks of 16 tokens."""
        self._slots.set_cache_listener(listener)

    def read(self, prompt: Prompt) -> PromptPlan:
        """Lay out a prompt; ranges whose tokens see each other both ways must not be split.

        Raises:
            RequestError: the prompt has images, and the model takes none.
        """
        if prompt.media and self._family.image_token_id is None:
            raise RequestError("this model takes no images")
        inputs = read_prompt(prompt, self._family)
        return PromptPlan(inputs.spans(), inputs)

    def admit(self, sequence: SequenceView) -> Admission | None:
        """Assign a slot, reusing a cached prefix; see :meth:`.Cache.admit`."""
        assignment = self._slots.admit(sequence)
        if assignment is None:
            return None
        memory, slot = self._decoder.memory, assignment.slot
        if assignment.is_stale:
            memory.discard(slot)
        if assignment.source is not None:
            memory.copy(assignment.source, slot, assignment.num_cached)
        if not assignment.num_cached:
            memory.reset(slot)
        self._free_discarded()
        return Admission(assignment.num_cached)

    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        """Make room for the first ``num_tokens`` of an admitted sequence; False if full."""
        has_room = self._slots.reserve(sequence, num_tokens)
        self._free_discarded()
        return has_room

    def commit(self, sequence: SequenceView, num_tokens: int) -> None:
        """Let other sequences start from the first ``num_tokens``."""
        self._slots.commit(sequence, num_tokens)

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        """Drop the tokens after the first ``num_tokens``."""
        self._slots.truncate(sequence, num_tokens)

    def release(self, sequence: SequenceView) -> None:
        """Release an admitted sequence's slot."""
        self._slots.release(sequence)
        self._free_discarded()

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        """Compute the items; see :meth:`vlmkit.interfaces.engine.Engine.forward`.

        Raises:
            OutOfMemory: there is too little memory for them.
        """
        try:
            return self._runner.run(items)
        except Exception as error:
            if is_out_of_memory(error):
                raise OutOfMemory("this request") from error
            raise

    @property
    def trial_name(self) -> str | None:
        """Settings alone decide; see :class:`vlmkit.interfaces.engine.VisionSelfCheck`."""
        return "onnx" if self._is_checked else None

    def try_media(self, prompts: Seq[Prompt], encoder: MediaEncoder) -> None:
        """Answer prompts with images, and compare the tower with the sample of its exporter.

        Raises:
            CheckpointError: the tower computes other rows, or logits are not finite.
            VlmkitError: engine or encoder fails.
        """
        if isinstance(encoder, HasExportSample):
            encoder.refuse_unlike_export()
        for prompt in prompts:
            rows = answered(self, encoder, prompt, prompt.token_ids[-1:])
            if rows is not None and not all(np.isfinite(np.asarray(row)).all() for row in rows):
                raise CheckpointError(
                    "what the graphs answer about a small picture has values that are not numbers"
                )

    def close(self) -> None:
        """Free the cache and the graph."""
        self._decoder.close()
        del self._runner

    def _free_discarded(self) -> None:
        for slot in self._slots.take_discarded():
            self._decoder.memory.discard(slot)
