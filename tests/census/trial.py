"""Runs one family through the pipeline, on torch and as ONNX graphs, against transformers."""

import inspect
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import zoo
from census import families, folder as checkpoints
from census.record import Finding, Record
from parity import pipeline, runner
from vlmkit.errors import EngineError, RequestError, VlmkitError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_onnx.export.decoder_traits import inspect_decoder
from vlmkit_onnx.export.exporter import export, exportable_config, load
from vlmkit_onnx.export.refusal import objection
from vlmkit_onnx.export.towers.table import tower_of
from vlmkit_onnx.export.views import Parts
from vlmkit_onnx.prompts.families import family_of
from vlmkit_torch.loading import reading
from vlmkit_torch.support import refusal

log = logging.getLogger(__name__)

TEXTS = (
    "Tell me about the sea, the sky and all that is between them.",
    "Hi!",
    "Name three rivers, three hills, three towns and a very large animal.",
)
AT_WORK = (RequestError, EngineError)
NO_PICTURES = {"media_encoder": {"use": "none"}}
LARGE = {"cache_tokens": 30_000, "max_chunk_tokens": 8192}  # an engine for images of any size
NO_PROCESSOR = "no processor of it can be made of what transformers says alone"
NO_EXPORT = "nothing of it is refused before it is exported, and no export was tried"
NO_MODEL = "no small model of it can be made of what transformers says alone"
PROCESSOR = "processor"  # a refusal that names one may be that of a processor of our making


def tried(model_type: str, engines: Seq[str], place: Path, *, exports: bool) -> Record:
    """Return the results of a family; one of the zoo is also tried with images."""
    name = families.in_zoo().get(model_type)
    if name is not None:
        return _tried_of_zoo(name, engines, place, exports=exports)
    try:
        small, processor = checkpoints.save_outline(model_type, place)
        if reason := refused_by_config(Checkpoint(model_type, place)):
            return _everywhere(model_type, engines, Finding("refused", reason))
        checkpoints.save_weights(small, place)
    except Exception as error:
        log.exception("no small model")
        checkpoints.save_default(model_type, place)
        if reason := refused_by_config(Checkpoint(model_type, place)):
            return _everywhere(model_type, engines, Finding("refused", reason))
        return _everywhere(model_type, engines, Finding("not tried", f"{NO_MODEL}: {_of(error)}"))
    return _tried_small(model_type, engines, place, processor, exports=exports)


def refused_by_config(checkpoint: Checkpoint) -> str | None:
    """Return why a family is refused before any of its weights is read; None if it is not."""
    if reason := refusal.engine_cannot_serve(checkpoint):
        return str(reason)
    try:
        reading.auto_class(checkpoint, reading.read_config(checkpoint))
    except VlmkitError as error:
        return str(error)
    return None


def _everywhere(model_type: str, engines: Seq[str], finding: Finding) -> Record:
    shown = ("text", "pictures") if families.sees(model_type) else ("text",)
    return {f"{engine} {column}": finding for engine in engines for column in shown}


@dataclass(frozen=True)
class _Case:
    """The requests to a family, and their expected answers.

    Attributes:
        asked: the requests.
        columns: the column of the page for each request.
        wanted: returns the answers of transformers, without banned tokens.
        options: of the load.
        sizes: of the engine, where the small defaults are not enough.
        exports: whether graphs are exported; else only the exporter's early check runs.
    """

    asked: list[runner.Request]
    columns: list[str]
    wanted: Callable[[Seq[int]], list[runner.Answer]]
    options: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, Any] = field(default_factory=dict)
    exports: bool = True


def _tried_small(
    model_type: str, engines: Seq[str], place: Path, processor: Any, *, exports: bool
) -> Record:
    found: Record = {}
    sees = families.sees(model_type)
    texts = replace(_texts(place, NO_PICTURES if sees else {}), exports=exports)
    seen = replace(_pictures(place, processor), exports=exports)
    for engine in engines:
        found |= _on(engine, model_type, place, texts)
        if sees:
            absent = {f"{engine} pictures": Finding("not tried", NO_PROCESSOR)}
            shown = _on(engine, model_type, place, seen) if processor else absent
            text, pictures = found[f"{engine} text"], shown[f"{engine} pictures"]
            found |= shown
            if (
                text.verdict == "refused"
                and pictures.verdict == "not tried"
                and PROCESSOR in text.reason
            ):
                found[f"{engine} text"] = pictures
    return found


def _texts(place: Path, options: dict[str, Any]) -> _Case:
    asked = [runner.Request([{"role": "user", "content": text}], []) for text in TEXTS]
    columns = ["text"] * len(asked)
    return _Case(asked, columns, lambda banned: _plain(place, asked, banned), options)


def _pictures(place: Path, processor: Any) -> _Case:
    """Return questions about images of sizes that suit the family."""
    asked = [
        _ask("Tell me what is in there.", [zoo.picture(1)]),
        _ask("How do they differ?", [zoo.picture(2, 84, 40), zoo.picture(3, 50, 100)]),
    ]
    columns = ["pictures"] * len(asked)
    return _Case(asked, columns, lambda b: _plain(place, asked, b, processor), sizes=LARGE)


def _ask(text: str, images: list[Any]) -> runner.Request:
    parts = [*({"type": "image"} for _ in images), {"type": "text", "text": text}]
    return runner.Request([{"role": "user", "content": parts}], images)


def _tried_of_zoo(name: str, engines: Seq[str], place: Path, *, exports: bool) -> Record:
    zoo.save(name, place)
    asked = runner.requests(name)
    columns = ["pictures" if request.images else "text" for request in asked]
    case = _Case(
        asked,
        columns,
        lambda banned: runner.expected(name, place, asked, banned),
        sizes={"cache_tokens": 4000},
        exports=exports,
    )
    found: Record = {}
    for engine in engines:
        found |= _on(engine, zoo.model_type(name), place, case)
    return found


def _on(engine: str, model_type: str, place: Path, case: _Case) -> Record:
    """Return an engine's findings."""
    if engine == "torch":
        found = _answers(place, engine, case)
    else:
        found = _exported(model_type, place, case, with_tower=case.options is not NO_PICTURES)
    return {f"{engine} {column}": finding for column, finding in found.items()}


def _exported(model_type: str, place: Path, case: _Case, *, with_tower: bool) -> dict[str, Finding]:
    """Return the results of a family as ONNX graphs."""
    target = place.with_name(f"{place.name}-onnx")
    checkpoint = Checkpoint(model_type, place)
    shutil.rmtree(target, ignore_errors=True)
    try:
        if reason := objection(checkpoint) or _before_tracing(checkpoint, with_tower=with_tower):
            return dict.fromkeys(case.columns, Finding("refused", str(reason)))
        if not case.exports:
            return dict.fromkeys(case.columns, Finding("not tried", NO_EXPORT))
        export(checkpoint, target, "fp32", lambda _: None, with_tower=with_tower)
    except VlmkitError as error:
        log.info("refused", exc_info=True)
        return dict.fromkeys(case.columns, Finding("refused", str(error)))
    except Exception as error:
        log.exception("the export fails")
        return dict.fromkeys(case.columns, Finding("fails", _of(error)))
    return _answers(target, "onnx", case)


def _before_tracing(checkpoint: Checkpoint, *, with_tower: bool) -> str | None:
    """Return why a family is refused before anything of it is traced; None if it is not."""
    try:
        exportable_config(checkpoint)
        visibility = family_of(checkpoint.config).visibility
        model = load(checkpoint)
        inspect_decoder(Parts(model), visibility)
        if with_tower and hasattr(model.base_model, "get_image_features"):
            tower_of(model.base_model)
    except VlmkitError as error:
        return str(error)
    except Exception:  # the exporter has a sentence for it
        log.exception("the exporter does not know it")
        name = checkpoint.model_type
        return f"model type {name!r} is built in a way that the exporter does not know"
    return None


def _answers(place: Path, engine: str, case: _Case) -> dict[str, Finding]:
    """Return the results of a folder's answers, by column."""
    unlike: Finding | None = None
    banned: list[int] = []
    found: list[tuple[str, Any]] = []
    try:
        with pipeline.load(place, engine, case.sizes, **case.options) as model:
            banned = sorted(model.runner._tokenizer.banned_ids)
            found = pipeline.stream_all(model, case.asked)
    except VlmkitError as error:
        log.info("refused", exc_info=True)
        unlike = Finding("fails" if isinstance(error, AT_WORK) else "refused", str(error))
    except Exception as error:
        log.exception("no answer")
        unlike = Finding("fails", _of(error))
    try:
        wanted = case.wanted(banned)
    except Exception as error:
        log.exception("transformers has no answer")
        unlike = Finding("not tried", f"transformers' own code gives no answer: {_of(error)}")
    if unlike is not None:
        return dict.fromkeys(case.columns, unlike)
    findings: dict[str, Finding] = {}
    for column, (_, samples), reference in zip(case.columns, found, wanted, strict=True):
        finding = _compared(samples, reference)
        if findings.get(column, Finding("equal")).verdict == "equal":
            findings[column] = finding
    return findings


def _compared(samples: Seq[Any], reference: runner.Answer) -> Finding:
    ids = [sample.token_id for sample in samples]
    rows = torch.log_softmax(reference.logits, -1)
    pairs = zip(samples, rows, strict=True)
    apart = max(abs(sample.logprob - row[sample.token_id].item()) for sample, row in pairs)
    if ids == reference.token_ids and apart < runner.TOLERANCE:
        return Finding("equal")
    same = sum(a == b for a, b in zip(ids, reference.token_ids, strict=True))
    return Finding("wrong", f"{same} of {len(ids)} tokens are equal, logits differ by {apart:.1g}")


def _plain(
    place: Path, asked: Seq[runner.Request], banned: Seq[int], processor: Any = None
) -> list[runner.Answer]:
    """Return the answers of ``generate`` to texts, and to images through a processor."""
    checkpoint = Checkpoint("m", place)
    auto = reading.auto_class(checkpoint, reading.read_config(checkpoint))
    model = auto.from_pretrained(place, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    answers = []
    for request in asked:
        inputs = _inputs(model, tokenizer, request, processor)
        said = model.generate(
            **inputs,
            max_new_tokens=runner.NUM_NEW,
            do_sample=False,
            suppress_tokens=list(banned) or None,
            output_logits=True,
            return_dict_in_generate=True,
        )
        ids = said.sequences[0, inputs["input_ids"].shape[1] :].tolist()
        answers.append(runner.Answer(ids, torch.cat(said.logits).float()))
    return answers


def _inputs(model: Any, tokenizer: Any, request: runner.Request, processor: Any) -> dict[str, Any]:
    text = tokenizer.apply_chat_template(
        request.messages, add_generation_prompt=True, tokenize=False
    )
    if not request.images:
        made = tokenizer([text], return_tensors="pt")
        return {name: made[name] for name in ("input_ids", "attention_mask")}
    types = "mm_token_type_ids" in inspect.signature(model.base_model.forward).parameters
    asked = {"return_mm_token_type_ids": True} if types else {}
    made = processor(text=[text], images=list(request.images), return_tensors="np", **asked)
    return {name: torch.from_numpy(np.asarray(made[name])) for name in made}


def _of(error: BaseException) -> str:
    """Return an error on a line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}"


@contextmanager
def quietly() -> Iterator[None]:
    """Let libraries be quiet, and compute with one thread."""
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    yield
