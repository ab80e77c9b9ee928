"""Both sides of a parity comparison: transformers' ``generate``, and an engine driven directly.

The engine side has no tokenizer and no pipeline, so a difference comes from the engine.
``test_pipeline_parity`` compares the whole pipeline.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import zoo
from parity import authors
from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.interfaces.sequence import Sequence
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit.running.scheduling.scheduler import ContinuousScheduler
from vlmkit.settings.scheduler import SchedulerSettings
from vlmkit.types.sampling import SamplingParams

NUM_NEW = 10
TOLERANCE = 1e-3  # of a logit: CPUs differ by 1e-4, a lost mechanism makes 1e-2 and more
IMAGE_TOKENS = ("image_token_id", "video_token_id", "audio_token_id")
ROOMS = {"phi4_multimodal": 1700, "got_ocr2": 1300}
"""Tokens of a cache, for families that take hundreds for a picture, however small it is."""
PADS_TOGETHER = frozenset({"emu3", "perception_lm"})
"""Whose processor makes one array of the pictures of a request: they must be of one size."""
TAKES_ONE = frozenset({"blip-2"})
"""Whose model takes one picture; a text alone is its language model's."""


@dataclass(frozen=True)
class Request:
    """A question in transformers' form, its images and the settings of their processor."""

    messages: list[dict[str, Any]]
    images: list[Any]
    limits: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """Greedy tokens, and the logits ``[tokens, vocab]`` they were chosen from."""

    token_ids: list[int]
    logits: torch.Tensor


@dataclass(frozen=True)
class Outcome:
    """How far two lists of answers agree."""

    num_equal: int
    num_requests: int
    difference: float

    @property
    def is_parity(self) -> bool:
        """Whether all tokens are equal and logits differ by rounding only."""
        return self.num_equal == self.num_requests and self.difference < TOLERANCE

    def __str__(self) -> str:
        return f"{self.num_equal}/{self.num_requests}, {self.difference:.0e}"


def requests(name: str) -> list[Request]:
    """Return four requests of different lengths, with 1, 0, 2 and 1 images."""
    if name in zoo.NAMES_TEXT:
        texts = (
            "Tell me about the sea, the sky and all that is between them.",
            "Hi!",
            "Count to ten.",
            "Name three rivers, three hills, three towns and a very large animal.",
        )
        return [Request([{"role": "user", "content": text}], []) for text in texts]
    square, wide, tall = zoo.picture(1), zoo.picture(2, 84, 40), zoo.picture(3, 50, 100)
    if name in PADS_TOGETHER:
        wide = zoo.picture(2, 50, 100)
    return [
        _ask("Tell me what is in there.", [square]),
        # PaliGemma's processor requires an image in each prompt.
        _ask("Just words, please.", [square] if name == "paligemma" else []),
        _ask("How do they differ?", [wide] if name in TAKES_ONE else [wide, tall]),
        _ask("Look at it closely, then describe it in a whole sentence.", [tall]),
    ]


def _ask(text: str, images: list[Any]) -> Request:
    parts = [*({"type": "image"} for _ in images), {"type": "text", "text": text}]
    return Request([{"role": "user", "content": parts}], images)


def load_reference(name: str, folder: Path) -> Any:
    """Return transformers' own model, whose answers never end early; see :mod:`.authors`."""
    kind = transformers.AutoModelForImageTextToText
    if name in zoo.NAMES_TEXT:
        kind = transformers.AutoModelForCausalLM
    elif answers := zoo.family(name).answers:
        kind = getattr(transformers, answers)
    how = {"dtype": torch.float32, "attn_implementation": zoo.family(name).attention}
    model = kind.from_pretrained(folder, **how).eval()
    if hasattr(model, "ct_decompress_hook"):  # which `generate` fires after it ran a tower
        model.hf_quantizer.compressor.decompress_model(model)
    whole = model.language_model if name in TAKES_ONE else model
    for each in (model, whole):
        each.generation_config.eos_token_id = None
        each.generation_config.pad_token_id = 0
    return authors.as_published(model)


def reference_inputs(name: str, request: Request) -> dict[str, Any]:
    """Return the inputs that the family's own processor makes from a request."""
    made = zoo.reference(
        name, request.messages, request.images, return_tensors="pt", limits=request.limits
    )
    return {key: value for key, value in made.items() if key != "labels"}


def expected(
    name: str, folder: Path, asked: Seq[Request], banned: Seq[int] | None = None
) -> list[Answer]:
    """Return what ``generate`` answers, one request at a time.

    ``banned`` tokens are never chosen; None bans the placeholders.
    """
    model = load_reference(name, folder)
    banned = banned_ids(model.config) if banned is None else banned
    answers = []
    for request in asked:
        inputs = reference_inputs(name, request)
        has_answer = model if request.images or name not in TAKES_ONE else model.language_model
        made = has_answer.generate(
            **inputs,
            max_new_tokens=NUM_NEW,
            do_sample=False,
            suppress_tokens=list(banned) or None,
            output_logits=True,
            return_dict_in_generate=True,
        )
        ids = made.sequences[0, inputs["input_ids"].shape[1] :].tolist()
        answers.append(Answer(ids, torch.cat(made.logits).float()))
    return answers


def continued(folder: Path, prompts: Seq[Prompt]) -> list[Answer]:
    """Return how ``generate`` goes on after the tokens of each prompt, for a text model."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt.token_ids])
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NUM_NEW,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        token_ids = made.sequences[0, len(prompt) :].tolist()
        answers.append(Answer(token_ids, torch.cat(made.logits).float()))
    return answers


def save_random(config: Any, folder: Path) -> Path:
    """Write a text model of random weights as a checkpoint; return the folder."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    return folder


def banned_ids(config: Any) -> list[int]:
    """Return the placeholder tokens, which no answer may hold."""
    ids = (getattr(config, name, None) for name in IMAGE_TOKENS)
    return sorted({i for i in ids if isinstance(i, int)})


def prompt(name: str, request: Request, image_token: int | None) -> Prompt:
    """Return a request as a prompt, each image processed on its own."""
    ids = reference_inputs(name, request)["input_ids"][0].tolist()
    places = [index for index, token in enumerate(ids) if token == image_token]
    slots = []
    for image in request.images:
        alone = zoo.reference(name, _ask("x", [image]).messages, [image])
        count = int((np.asarray(alone["input_ids"]) == image_token).sum())
        own, places = places[:count], places[count:]
        arrays = {key: np.asarray(alone[key]) for key in alone if _is_image_array(key)}
        digest = hashlib.sha256(b"".join(arrays[key].tobytes() for key in sorted(arrays))).digest()
        before, after, types = _around(alone, image_token)
        start, stop = own[0] - before, own[-1] + 1 + after
        slots.append(MediaSlot(start, stop, digest, {**arrays, **types}, count))
    return Prompt(tuple(ids), tuple(slots))


def _around(alone: Mapping[str, Any], image_token: int | None) -> tuple[int, int, dict[str, Any]]:
    """Return the number of tokens around image features with the same type, and the types.

    Both are empty for nearly all families.
    """
    types = np.asarray(alone.get("mm_token_type_ids", [[]]))[0]
    typed = np.flatnonzero(types)
    places = np.flatnonzero(np.asarray(alone["input_ids"])[0] == image_token)
    if len(typed) <= len(places):
        return 0, 0, {}
    first, last = typed[0], typed[-1]
    own = {"mm_token_type_ids": types[first : last + 1]}
    return int(places[0] - first), int(last - places[-1]), own


def _is_image_array(key: str) -> bool:
    return key not in ("input_ids", "attention_mask", "labels") and "token_type" not in key


def load_engine(
    name: str, folder: Path, **settings: Any
) -> tuple[Engine, MediaEncoder | None, Any]:
    """Return the torch engine, its encoder and the model's configuration."""
    from vlmkit_torch.engine import torch_engine
    from vlmkit_torch.settings import EncoderSettings, EngineSettings
    from vlmkit_torch.vision import encoder

    shared: dict[Any, Any] = {}
    checkpoint = Checkpoint(name, folder)
    tiny = {"cache_tokens": 600, "block_tokens": 4, "max_chunk_tokens": 64, **settings}
    tiny["cache_tokens"] = max(tiny["cache_tokens"], ROOMS.get(name, 0))
    made = torch_engine.build(BuildContext("", checkpoint, EngineSettings(**tiny), shared))
    config = config_of(folder)
    if name in zoo.NAMES_TEXT:
        return made, None, config
    return made, encoder.build(BuildContext("", checkpoint, EncoderSettings(), shared)), config


def load_onnx_engine(
    name: str, folder: Path, **settings: Any
) -> tuple[Engine, MediaEncoder | None, Any]:
    """Return the ONNX engine of an exported folder, its encoder and the configuration."""
    from vlmkit_onnx import build
    from vlmkit_onnx.settings import EncoderSettings, EngineSettings

    checkpoint = Checkpoint(name, folder)
    tiny = {"cache_tokens": 600, "max_chunk_tokens": 64, "num_threads": 1, **settings}
    made = build.build_engine(BuildContext("", checkpoint, EngineSettings(**tiny)))
    config = config_of(folder)
    if name in zoo.NAMES_TEXT:
        return made, None, config
    few = EncoderSettings(num_threads=1)
    return made, build.build_encoder(BuildContext("", checkpoint, few)), config


def config_of(folder: Path) -> Any:
    """Return the configuration of a checkpoint's answering part, as transformers reads it."""
    config = transformers.AutoConfig.from_pretrained(folder)
    return getattr(config, "thinker_config", config)


def prompts(name: str, config: Any) -> list[Prompt]:
    """Return the four requests as prompts."""
    tower = getattr(config, "vision_config", None)
    tokens = (getattr(part, "image_token_id", None) for part in (config, tower))
    image_token = next((token for token in tokens if token is not None), None)
    return [prompt(name, request, image_token) for request in requests(name)]


def outcome(
    name: str,
    folder: Path,
    wanted: Seq[Answer],
    *,
    step_tokens: int = 13,
    load: Callable[..., tuple[Engine, MediaEncoder | None, Any]] = load_engine,
    **settings: Any,
) -> Outcome:
    """Run the four requests through a fresh engine and compare."""
    engine, encoder, config = load(name, folder, **settings)
    asked = prompts(name, config)
    found = run(engine, encoder, asked, banned_ids(config), step_tokens=step_tokens)
    return compare(found, wanted)


def run(
    engine: Engine,
    encoder: MediaEncoder | None,
    prompts: Seq[Prompt],
    banned: Seq[int] = (),
    *,
    arrival_steps: int = 2,
    step_tokens: int = 13,
) -> list[Answer]:
    """Answer prompts together: they arrive one by one, are read in chunks and decoded mixed."""
    scheduler = ContinuousScheduler(SchedulerSettings(max_step_tokens=step_tokens))
    sequences = [
        Sequence(
            id=str(number),
            prompt=prompt,
            params=SamplingParams(),
            seed=0,
            max_tokens=NUM_NEW,
            plan=engine.read(prompt),
        )
        for number, prompt in enumerate(prompts)
    ]
    logits: dict[Sequence, list[torch.Tensor]] = {sequence: [] for sequence in sequences}
    waiting, unfinished = list(sequences), set(sequences)
    for tick in range(1000):
        if waiting and tick % max(arrival_steps, 1) == 0:
            scheduler.add(waiting.pop(0))
        step = scheduler.plan(engine)
        _encode(encoder, step.encodes)
        rows: Any = engine.forward(step.items).logits
        scheduler.commit(step, 0.0)
        for item in step.items:
            engine.commit(item.sequence, item.stop)
        wanted = [item for item in step.items if item.num_rows]
        for row, item in zip(torch.as_tensor(rows) if wanted else (), wanted, strict=True):
            sequence = item.sequence
            logits[sequence].append(row.clone())
            row[[i for i in banned if i < len(row)]] = -torch.inf  # an image may have no logit
            sequence.output_ids.append(int(row.argmax()))
            if len(sequence.output_ids) == NUM_NEW:
                scheduler.remove(sequence, engine)
                unfinished.discard(sequence)
        if not unfinished:
            break
    return [Answer(s.output_ids, torch.stack(logits[s]).float()) for s in sequences]


def _encode(encoder: MediaEncoder | None, items: Seq[Any]) -> None:
    if encoder is None or not items:
        return
    made = encoder.encode([item.sequence.prompt.media[item.index] for item in items])
    for item, features in zip(items, made, strict=True):
        item.sequence.features[item.index] = features


def compare(found: Seq[Answer], wanted: Seq[Answer]) -> Outcome:
    """Return how many answers have equal tokens, and the largest difference of logits.

    After the first different token the two sides read different texts, so only the rows up to
    there are compared.
    """
    num_equal, difference = 0, 0.0
    for ours, theirs in zip(found, wanted, strict=True):
        pairs = list(zip(ours.token_ids, theirs.token_ids, strict=True))
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        num_equal += same == len(pairs)
        rows = min(same + 1, len(pairs))
        gap = (ours.logits[:rows] - theirs.logits[:rows]).abs().max().item()
        difference = max(difference, gap)
    return Outcome(num_equal, len(wanted), difference)
