"""The kinds of thing that a plugin can offer, as data.

One row each: its hook, its registry, its section of the config, and its place in the reference come
out of it. A plugin that owns a kind says so: ``VLMKIT_KINDS = (Kind(...),)`` in its module makes a
hook that other plugins can implement, and ``context.providers(kind)`` is what they offered. A
table of the config that selects among these is another line: ``VLMKIT_TABLES = {"codecs": CODEC}``.
A table may also have the settings of the plugin itself, as a struct that decodes it:
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
from vlmkit.interfaces.sampler import Sampler
from vlmkit.interfaces.scheduler import Scheduler
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.names import OWNERS_OF_COMMANDS

T = TypeVar("T")
Mode = Literal["one", "all", "by name"]
Serves = Literal["all", "named", "own"]


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """One kind.

    Attributes:
        name: in the singular, with underscores between its words.
        makes: the protocol or class of what its providers build; None leaves the check to who asks.
        mode: which providers are used: ``one``, chosen by its name or by what it can serve; ``all``
            named ones; or each ``by name`` on request.
        meaning: what a provider of it makes, as the end of a sentence that begins with *what*.
        contract: ``module:Class`` of the tests that a provider must pass; empty without any.
        is_optional: a pipeline can do without, and does where the config does not choose; where
            one is used, the section says ``none``. Of what is not optional, all that can serve are
            used where the mode is ``all``.
        is_dispensable: a model that has use for one is served without it where its section says
            ``none``.
        is_late: whether a provider of an optional kind is built when it is first needed, so that an
            unused one costs nothing. A server builds it before it is ready, so that no request
            waits. If the config chooses none, one that can serve is used, if there is any.
        reserved: names that no provider can have, but those of the distribution that each of them
            leads to.
        max_words: words that a name may have, with a blank between two of them.
        serves: what a provider without ``cannot_serve`` can be used for: ``all``, what it is
            ``named`` for, or its ``own`` name alone.
        field_changes: what fields may change that its providers add to requests, by
            :attr:`vlmkit.interfaces.request_field.RequestField.changes`; nothing in it where what
            they build sees no sequences.
    """

    name: str
    makes: Any
    mode: Mode
    meaning: str
    contract: str = ""
    is_optional: bool = False
    is_dispensable: bool = False
    is_late: bool = False
    reserved: Mapping[str, str] = field(default_factory=dict, hash=False)
    max_words: int = 1
    serves: Serves = "all"
    field_changes: tuple[Changes, ...] = ()

    @property
    def words(self) -> str:
        """The name in messages."""
        return self.name.replace("_", " ")

    @property
    def plural(self) -> str:
        """The name of its registry."""
        return f"{self.name}s"

    @property
    def hook(self) -> str:
        """The hook that offers providers of it."""
        return f"vlmkit_register_{self.plural}"

    @property
    def default(self) -> str:
        """What ``use`` says in its section where the config does not: of a kind of mode ``one``."""
        return "none" if self.is_optional and not self.is_late else "auto"

    @property
    def takes_none(self) -> bool:
        """Whether its section may say ``none``."""
        return self.is_optional or self.is_dispensable

    @property
    def section(self) -> str:
        """The table of the config that selects among its providers, where there is one."""
        return {"one": self.name, "all": self.plural, "by name": ""}[self.mode]


Table = type[msgspec.Struct] | Kind[Any]
"""What decodes a table of the config: a struct, or the settings of each provider of a kind."""

TOKENIZER: Kind[Tokenizer] = Kind(
    "tokenizer",
    Tokenizer,
    "one",
    "what makes prompts of conversations",
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
    "what decides who runs next",
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
    "what guesses tokens that the engine then verifies",
    "vlmkit_testing:ProposerContract",
    field_changes=("nothing",),
    is_optional=True,
)
CONSTRAINT: Kind[ConstraintCompiler] = Kind(
    "constraint",
    ConstraintCompiler,
    "one",
    "what keeps answers within a schema, a pattern or a grammar",
    "vlmkit_testing:ConstraintContract",
    is_optional=True,
    is_late=True,
)
OBSERVER: Kind[Observer] = Kind(
    "observer",
    Observer,
    "all",
    "what is told how requests fare",
    "vlmkit_testing:ObserverContract",
    is_optional=True,
)
MEDIA_LOADER: Kind[MediaLoader] = Kind(
    "media_loader",
    MediaLoader,
    "all",
    "what opens files of images, sounds and the like",
    "vlmkit_testing:MediaLoaderContract",
)
MODEL: Kind[Checkpoint] = Kind(
    "model",
    Checkpoint,
    "by name",
    "what has a model's files",
    "vlmkit_testing:ModelContract",
    serves="own",
)
COMMAND: Kind[Any] = Kind(
    "command",
    None,  # the command line looks at what it was given, and knows click
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
    MODEL,
    COMMAND,
)
