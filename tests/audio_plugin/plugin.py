"""A toy model with audio input: a plugin for a modality that the core does not know.

The loader reads a WAV file, and the message part holds its samples. The media slot holds frames,
the encoder makes one row of features for each frame, and the engine answers how loud the sound is.
"""

import codecs
import hashlib
import io
import wave
from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import vlmkit
from vlmkit.errors import EngineError, MediaError
from vlmkit.interfaces.engine import Admission, EngineLimits
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import MediaSlot, Prompt, PromptPlan
from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit.interfaces.tokenizer import PLAIN, Option
from vlmkit.interfaces.view import SequenceView
from vlmkit.kit.block_pool import BlockPool
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.plain_parser import PlainParser
from vlmkit.plugins.registry import Registry
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.media import MediaPart
from vlmkit.types.message import Message, TextPart, parts_of, refuse_other_media
from vlmkit.types.prompt_options import PromptOptions
from vlmkit.types.tool_call import ToolCallPart

VLMKIT_API = (1, 0)
AUDIO = "audio"
END, SYSTEM, USER, ANSWER, TOOL, SOUND = range(256, 262)  # after the bytes: no text reaches them
ROLES = {"system": SYSTEM, "user": USER, "assistant": ANSWER, "tool": TOOL}
VOCAB_SIZE = 262
FRAME_SAMPLES = 80
HIDDEN = 8
BLOCK_TOKENS = 4
FADING = np.array([1.0] + [0.9] * (HIDDEN - 1), np.float32)  # loudness adds up, all else fades
ANSWERS = {0.0: "silence", 0.01: "soft", 0.5: "loud"}
"""What the model says of sounds whose mean amplitudes add up to at least so much."""


@dataclass(frozen=True)
class Sound:
    """Samples ``[num_samples]`` of one channel, from -1 to 1."""

    samples: Any

    @cached_property
    def digest(self) -> bytes:
        """Sha256 of the samples."""
        return hashlib.sha256(self.samples.tobytes()).digest()

    @property
    def num_bytes(self) -> int:
        """Memory that the samples take."""
        return int(self.samples.nbytes)


class WavLoader:
    """Opens WAV files of one channel and 16 bits."""

    def recognises(self, data: bytes) -> bool:
        """Tell whether it is a WAV file."""
        return data[:4] == b"RIFF" and data[8:12] == b"WAVE"

    def load(self, data: bytes, bounds: PipelineSettings) -> tuple[MediaPart]:
        """Return the sound."""
        try:
            with wave.open(io.BytesIO(data)) as file:
                is_known = (file.getnchannels(), file.getsampwidth()) == (1, 2)
                content = file.readframes(bounds.max_media_bytes // 4 + 1)
        except (wave.Error, EOFError, RuntimeError) as error:  # of a chunk that leads outside
            raise MediaError("a sound is broken") from error
        samples = np.frombuffer(content[: len(content) // 2 * 2], np.int16) / np.float32(2**15)
        if not is_known or not len(samples):
            raise MediaError("a sound must have one channel of 16 bits, and not be empty")
        if samples.nbytes > bounds.max_media_bytes:
            raise MediaError(
                f"a sound is over {bounds.max_media_bytes} bytes", code="media_too_large"
            )
        return (MediaPart(AUDIO, Sound(samples)),)


class HearingTokenizer:
    """One token for each byte, and one for each frame of a sound."""

    vocab_size = VOCAB_SIZE
    eos_ids = frozenset({END})
    banned_ids = frozenset({SYSTEM, USER, ANSWER, TOOL, SOUND})
    honours: frozenset[Option] = frozenset()

    def prompt(
        self,
        messages: Seq[Message],
        *,
        tools: Seq[Mapping[str, Any]] | None = None,
        options: PromptOptions = PLAIN,
    ) -> Prompt:
        """Lay the turns out, with a slot for each sound; thoughts of earlier turns are left out."""
        if tools or any(isinstance(part, ToolCallPart) for part in parts_of(messages)):
            raise vlmkit.RequestError("this model uses no tools", param="tools")
        refuse_other_media(messages, {AUDIO})
        ids: list[int] = []
        slots = []
        for message in messages:
            ids.append(ROLES[message.role])
            for part in message.parts:
                if isinstance(part, MediaPart):
                    slot = slot_of(part.media, len(ids))
                    slots.append(slot)
                    ids += [SOUND] * slot.num_features
                elif isinstance(part, TextPart):
                    ids += self.encode(part.text)
            ids.append(END)
        return Prompt((*ids, ANSWER), tuple(slots))

    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        """Return the bytes of the text."""
        return list(text.encode(errors="replace"))

    def decode(self, token_ids: Seq[int]) -> str:
        """Return the text of the bytes."""
        return b"".join(map(self.token_bytes, token_ids)).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the byte; nothing for a special token."""
        return bytes([token_id]) if token_id < END else b""

    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> PlainParser:
        """Return the parser of an answer, all of which is text. It ignores unsupported options."""
        return PlainParser(ByteStream())


class ByteStream:
    """Holds bytes back until they are a character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Return the character that this byte completes, if it does."""
        return self._decoder.decode(bytes([token_id]) if token_id < END else b"")

    def flush(self) -> str:
        """Return the rest of an unfinished character."""
        return self._decoder.decode(b"", final=True)


def slot_of(sound: Sound, start: int) -> MediaSlot:
    """Return the slot of a sound whose first frame is token ``start``."""
    num_frames = -(-len(sound.samples) // FRAME_SAMPLES)
    frames = np.zeros((num_frames, FRAME_SAMPLES), np.float32)
    frames.reshape(-1)[: len(sound.samples)] = sound.samples
    return MediaSlot(
        start=start,
        stop=start + num_frames,
        digest=hashlib.sha256(b"hearing 1\0" + sound.digest).digest(),
        inputs={"frames": frames},
        num_features=num_frames,
        kind=AUDIO,
    )


class HearingEncoder:
    """A row for each frame: how loud it is, and how much of it is in each of a few bands."""

    identity = "hearing 1"
    media_kinds = frozenset({AUDIO})

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        """Return ``[num_frames, HIDDEN]`` for each sound."""
        made = []
        for slot in slots:
            frames = np.from_dlpack(slot.inputs["frames"])
            loudness = np.abs(frames).mean(1, keepdims=True) / len(frames)
            bands = np.abs(np.fft.rfft(frames)[:, 1:HIDDEN]) / FRAME_SAMPLES
            rows = np.hstack([loudness, bands]).astype(np.float32)
            made.append(MediaFeatures(len(rows), rows, num_bytes=rows.nbytes))
        return made

    def close(self) -> None:
        """Nothing to free."""


class HearingEngine:
    """Each cell of the cache sums up all earlier ones; the answer is a word for the loudness."""

    def __init__(self) -> None:
        self._pool = BlockPool(256, BLOCK_TOKENS)
        self._cells = np.zeros((256 * BLOCK_TOKENS, HIDDEN), np.float32)
        random = np.random.default_rng(0)
        self._embeddings = random.random((VOCAB_SIZE, HIDDEN), np.float32)
        self._embeddings[:, 0] = 0.0  # no text makes a sound
        self._readout = random.random((HIDDEN, VOCAB_SIZE), np.float32)
        self.limits = EngineLimits(
            vocab_size=VOCAB_SIZE,
            max_sequence_tokens=512,
            max_sequences=8,
            capacity_tokens=len(self._cells),
            max_chunk_tokens=32,
            mixes_prefill_and_decode=True,
            prefix_block_tokens=BLOCK_TOKENS,
            is_batch_invariant=True,
        )

    def read(self, prompt: Prompt) -> PromptPlan:
        """Any chunk will do."""
        return PromptPlan()

    def admit(self, sequence: SequenceView) -> Admission | None:
        """Make room for all present tokens and one more."""
        if self._pool.num_sequences == self.limits.max_sequences:
            return None
        return self._pool.admit(sequence)

    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        """Make room for the first ``num_tokens``."""
        return self._pool.reserve(sequence, num_tokens)

    def commit(self, sequence: SequenceView, num_tokens: int) -> None:
        """Let others share the first ``num_tokens``."""
        self._pool.commit(sequence, num_tokens)

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        """Drop everything after the first ``num_tokens``."""
        self._pool.truncate(sequence, num_tokens)

    def release(self, sequence: SequenceView) -> None:
        """Give the room up."""
        self._pool.release(sequence)

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        """Compute the items one by one."""
        rows = [row for item in items for row in self._computed(item)[: item.num_rows]]
        return StepOutput(np.stack(rows) if rows else None)

    def close(self) -> None:
        """Nothing to free."""

    def _computed(self, item: WorkItem) -> list[Any]:
        sequence = item.sequence
        rows = self._embeddings[np.array(item.token_ids)]
        for index, slot in enumerate(sequence.prompt.media):
            first, last = max(slot.start, item.start), min(slot.stop, item.stop)
            if first < last:
                heard = np.from_dlpack(sequence.features[index].embeddings)
                part = heard[first - slot.start : last - slot.start]
                rows[first - item.start : last - item.start] = part
        state = np.zeros(HIDDEN, np.float32)
        if item.start:
            state = self._cells[self._cell(sequence, item.start - 1)]
        for position, row in enumerate(rows, item.start):
            state = state * FADING + row
            self._cells[self._cell(sequence, position)] = state
        return [self._logits(state, item.stop - sequence.num_prompt_tokens)]

    def _logits(self, state: Any, index: int) -> Any:
        """Return the row after token ``index`` of the answer, which begins with the prompt's."""
        if not np.isfinite(state).all():
            raise EngineError("the model heard what is no number")
        word = next(w for least, w in reversed(ANSWERS.items()) if state[0] >= least)
        logits = state @ self._readout
        logits[word.encode()[index] if 0 <= index < len(word) else END] += 100.0
        return logits

    def _cell(self, sequence: SequenceView, position: int) -> int:
        block = self._pool.blocks(sequence)[position // BLOCK_TOKENS]
        return block * BLOCK_TOKENS + position % BLOCK_TOKENS


def _cannot_serve(checkpoint: Checkpoint) -> str | None:
    return None if checkpoint.model_type == "hearing" else "it serves only the model 'hearing'"


@vlmkit.hookimpl
def vlmkit_register_models(registry: Registry[Any]) -> None:
    """Offer the model ``hearing``."""
    folder = Path(__file__).with_name("model")
    registry.add_packaged("hearing", folder, description="says how loud a sound is")


@vlmkit.hookimpl
def vlmkit_register_media_loaders(registry: Registry[Any]) -> None:
    """Offer ``media_loaders.use = ["wav"]``; it needs no naming."""
    registry.add("wav", lambda _: WavLoader())


@vlmkit.hookimpl
def vlmkit_register_tokenizers(registry: Registry[Any]) -> None:
    """Offer ``tokenizer.use = "hearing"``."""
    registry.add("hearing", lambda _: HearingTokenizer(), cannot_serve=_cannot_serve)


@vlmkit.hookimpl
def vlmkit_register_media_encoders(registry: Registry[Any]) -> None:
    """Offer ``media_encoder.use = "hearing"``."""
    registry.add("hearing", lambda _: HearingEncoder(), cannot_serve=_cannot_serve)


@vlmkit.hookimpl
def vlmkit_register_engines(registry: Registry[Any]) -> None:
    """Offer ``engine.use = "hearing"``."""
    registry.add("hearing", lambda _: HearingEngine(), cannot_serve=_cannot_serve)
