"""The components that a pipeline is assembled from."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, Required, TypedDict

from vlmkit.checkpoints.pooling import Pooling
from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.media_loader import MediaLoader
from vlmkit.interfaces.observer import Observer
from vlmkit.interfaces.proposer import Proposer
from vlmkit.interfaces.request_field import RequestField
from vlmkit.interfaces.sampler import Sampler
from vlmkit.interfaces.scheduler import Scheduler
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.running.constraints.compiled import MakeCompiler
from vlmkit.running.constraints.sandbox.worker import ConstraintWorker
from vlmkit.running.faults.attribution import ComponentNames
from vlmkit.running.prompting.renderers.pool import RendererPool


class Closes(Protocol):
    """Something that is closed once."""

    def close(self) -> None:
        """Free what it holds."""


class Components(TypedDict, total=False):
    """The keyword arguments of a pipeline that name its components.

    Each may be left out, or None, but for the tokenizer and the engine.

    Attributes:
        tokenizer: the model's text side.
        engine: the language model.
        media_encoder: encodes media; without one the model reads text alone.
        scheduler: the built-in one by default.
        sampler: the built-in one by default.
        proposer: guesses tokens that the engine then verifies; nothing is guessed by default.
        constraint: makes a compiler of constraints for a vocabulary, when the first constraint
            comes or in ``prepare``. Without it, requests with a constraint are rejected.
        constraint_worker: checks constraints in processes of their own before they are compiled.
            Without it, they are compiled at once.
        observers: receive events of requests, by the names that the statistics use.
        media_loaders: open files, by the names that errors use; the built-in image loaders by
            default.
        request_fields: the fields that plugins added to requests and components read.
        pooling: returns how hidden states become the vector of a text.
        other_models: further models that components use; closed after the engine.
        renderers: build prompts in processes of their own; in threads by default.
        component_names: what errors and the log call the components.
    """

    tokenizer: Required[Tokenizer]
    engine: Required[Engine]
    media_encoder: MediaEncoder | None
    scheduler: Scheduler | None
    sampler: Sampler | None
    proposer: Proposer | None
    constraint: MakeCompiler | None
    constraint_worker: ConstraintWorker | None
    observers: Mapping[str, Observer] | None
    media_loaders: Mapping[str, MediaLoader] | None
    request_fields: Iterable[RequestField[Any]]
    pooling: Callable[[], Pooling]
    renderers: RendererPool | None
    component_names: ComponentNames
    other_models: Closes | None
