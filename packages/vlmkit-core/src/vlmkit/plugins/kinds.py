"""The kinds of providers that plugins can register, as data.

A kind's row defines its hook, its registry, its section of the config and its entry in the
reference. A plugin can own further kinds: ``VLMKIT_KINDS = (Kind(...),)`` in its module adds a hook
that other plugins can implement. ``context.providers(kind)`` returns the providers that they
register; a ``cannot_serve`` with a parameter ``providers`` gets the same function.
``VLMKIT_TABLES = {"codecs": CODEC}`` adds a table of the config that selects among them.
A table may also hold settings of the plugin itself, decoded by a struct:
``VLMKIT_TABLES = {"cluster": ClusterSettings}``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import msgspec

from vlmkit.interfaces.constraint import ConstraintCompiler
from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.media_loader import MediaLoader
from vlmkit.interfaces.observer import Observer
from vlmkit.interfaces.proposer import Proposer
from vlmkit.interfaces.request_field import Changes
from vlmkit.interfaces.runner import Runner
from vlmkit.interfaces.sampler import Sampler
from vlmkit.interfaces.scheduler import Scheduler
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.names import OWNERS_OF_COMMANDS

T = TypeVar("T")
Mode = Literal["one", "all", "by name"]
Serves = Literal["all", "named", "own"]
Owns = Literal["schemes", "suffixes"]


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """One kind of provider.

    Attributes:
        name: its name in the singular, with underscores between words. A name that ends with ``s``,
            such as ``torch_weights``, is its own plural.
        makes: the protocol or class of the components; None leaves the check to the caller.
        mode: how providers are selected. ``one``: a single one, by name or by what it can serve.
            ``all``: every one that the config lists. ``by name``: each when it is requested.
        meaning: what its components do, as a phrase that begins with *what*.
        contract: ``module:Class`` of the contract tests for its providers; empty for none.
        template: ``module:name`` of the ``vlmkit_testing.project.Template`` from which
            ``vlmkit plugins new`` writes a project; empty for none, and for vlmkit's own kinds.
        is_optional: whether a pipeline works without a provider, and uses none by default. For mode
            ``one``, the default of ``use`` is ``none``. Providers of a kind that is not optional
            and has mode ``all`` are used by default if they can serve the model.
        is_dispensable: whether ``use = "none"`` serves a model without the component even if the
            model could use it.
        is_late: whether an optional component is built only when it is first needed, or before a
            server is ready. Unused installed providers then cost nothing. By default a provider
            that can serve the model is used, if there is any.
        is_named_by_engine: whether the engine of a model may name the provider that ``auto`` uses;
            ``auto`` is then the default.
        reserved: names that only one distribution may use for its providers, with that
            distribution.
        max_words: maximum number of words in a name, separated by single blanks.
        serves: what a provider without ``cannot_serve`` is used for. ``all``: every model.
            ``named``: models whose config names it. ``own``: only the model of its own name.
        owns: the parts of model references that one provider alone may serve: ``schemes`` of URIs,
            and ``suffixes`` of files that hold a whole model.
        field_changes: permitted values of
            :attr:`vlmkit.interfaces.request_field.RequestField.changes` for its providers' request
            fields; empty if the components see no sequences.
    """

    name: str
    makes: Any
    mode: Mode
    meaning: str
    contract: str = ""
    template: str = ""
    is_optional: bool = False
    is_dispensable: bool = False
    is_late: bool = False
    is_named_by_engine: bool = False
    reserved: Mapping[str, str] = field(default_factory=dict, hash=False)
    max_words: int = 1
    serves: Serves = "all"
    owns: tuple[Owns, ...] = ()
    field_changes: tuple[Changes, ...] = ()

    @property
    def words(self) -> str:
        """The name in messages."""
        return self.name.replace("_", " ")

    @property
    def plural(self) -> str:
        """The name of its registry."""
        return self.name if self.name.endswith("s") else f"{self.name}s"

    @property
    def hook(self) -> str:
        """The hook that registers its providers."""
        return f"vlmkit_register_{self.plural}"

    @property
    def default(self) -> str:
        """The default of ``use`` in its section, for mode ``one``."""
        has_auto = self.is_late or self.is_named_by_engine
        return "none" if self.is_optional and not has_auto else "auto"

    @property
    def takes_none(self) -> bool:
        """Whether ``use`` may be ``none``."""
        return self.is_optional or self.is_dispensable

    @property
    def section(self) -> str:
        """The table of the config that selects among its providers; empty for mode ``by name``."""
        return {"one": self.name, "all": self.plural, "by name": ""}[self.mode]


Table = type[msgspec.Struct] | Kind[Any]
"""The type of a table of the config: a struct, or a kind with the settings of its providers."""

TOKENIZER: Kind[Tokenizer] = Kind(
    "tokenizer",
    Tokenizer,
    "one",
    "what builds prompts from conversations",
    "vlmkit_testing:TokenizerContract",
    serves="named",
)
MEDIA_ENCODER: Kind[MediaEncoder] = Kind(
    "media_encoder",
    MediaEncoder,
    "one",
    "what turns images and other media into embeddings",
    "vlmkit_testing:MediaEncoderContract",
    is_dispensable=True,
    serves="named",
)
ENGINE: Kind[Engine] = Kind(
    "engine",
    Engine,
    "one",
    "what runs the language model",
    "vlmkit_testing:EngineContract",
    serves="named",
    field_changes=("states", "nothing"),
)
SCHEDULER: Kind[Scheduler] = Kind(
    "scheduler",
    Scheduler,
    "one",
    "what decides which sequences run next",
    "vlmkit_testing:SchedulerContract",
    field_changes=("nothing",),
)
SAMPLER: Kind[Sampler] = Kind(
    "sampler",
    Sampler,
    "one",
    "what chooses the tokens",
    "vlmkit_testing:SamplerContract",
    field_changes=("choices", "nothing"),
)
PROPOSER: Kind[Proposer] = Kind(
    "proposer",
    Proposer,
    "one",
    "what drafts tokens that the engine then verifies",
    "vlmkit_testing:ProposerContract",
    field_changes=("nothing",),
    is_optional=True,
)
CONSTRAINT: Kind[ConstraintCompiler] = Kind(
    "constraint",
    ConstraintCompiler,
    "one",
    "what constrains answers to a schema, a pattern or a grammar",
    "vlmkit_testing:ConstraintContract",
    is_optional=True,
    is_late=True,
)
OBSERVER: Kind[Observer] = Kind(
    "observer",
    Observer,
    "all",
    "what receives the events of requests",
    "vlmkit_testing:ObserverContract",
    is_optional=True,
)
MEDIA_LOADER: Kind[MediaLoader] = Kind(
    "media_loader",
    MediaLoader,
    "all",
    "what opens files of images, sounds and other media",
    "vlmkit_testing:MediaLoaderContract",
)
RUNNER: Kind[Runner] = Kind(
    "runner",
    Runner,
    "one",
    "what answers the requests, in place of one pipeline in this process",
    "vlmkit_testing:RunnerContract",
    is_optional=True,
    is_named_by_engine=True,
    serves="named",
    owns=("schemes",),
)
MODEL: Kind[Checkpoint] = Kind(
    "model",
    Checkpoint,
    "by name",
    "what provides a model's files",
    "vlmkit_testing:ModelContract",
    serves="own",
    owns=("schemes", "suffixes"),
)
COMMAND: Kind[Any] = Kind(
    "command",
    None,  # the command line checks the result itself, because only it imports click
    "by name",
    "what adds a command to the command line",
    "vlmkit_testing:CommandContract",
    reserved=OWNERS_OF_COMMANDS,
    max_words=2,
)
KINDS: tuple[Kind[Any], ...] = (
    TOKENIZER,
    MEDIA_ENCODER,
    ENGINE,
    SCHEDULER,
    SAMPLER,
    PROPOSER,
    CONSTRAINT,
    OBSERVER,
    MEDIA_LOADER,
    RUNNER,
    MODEL,
    COMMAND,
)
