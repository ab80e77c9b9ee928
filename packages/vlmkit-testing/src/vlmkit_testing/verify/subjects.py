"""The components of a model with which one of them is tried: prompts, images and features."""

from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from vlmkit.assembly.load import choose
from vlmkit.config import COMPONENTS, Config, ModelEntry
from vlmkit.config.providers import registry_of
from vlmkit.errors import CheckpointError, PluginUnavailable, VlmkitError
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.objection import with_hint
from vlmkit.plugins.kinds import Kind
from vlmkit.plugins.loader import Plugins
from vlmkit.plugins.provider import Provider
from vlmkit.plugins.registry import BuildContext
from vlmkit.types.message import Message
from vlmkit_testing.verify.sample_files import sample_files

QUESTIONS = (
    "Hello",
    "What is the capital of France?",
    "Tell me a story of a fox and a hen. " * 8,
)
ANSWER = "The capital of France is Paris, and it always was."


class ModelParts:
    """A model's components around the tried one, each built once, when it is needed.

    Args:
        entry: the model that was asked for.
        config: settings of its components.
        plugins: who offers them.
        checkpoint: see above.
        is_partial: whether it is enough that what is used can be built.

    Attributes:
        checkpoint: its files.
        choice: the provider's name and settings of each component that it would be served with.
    """

    def __init__(
        self,
        entry: ModelEntry,
        config: Config,
        plugins: Plugins,
        checkpoint: Checkpoint,
        *,
        is_partial: bool = False,
    ) -> None:
        self._entry = entry
        self._plugins = plugins
        self.checkpoint = checkpoint
        self._missing: dict[str, VlmkitError] = {}
        self.choice: dict[str, tuple[str, dict[str, Any]]] = {}
        for section in COMPONENTS:
            try:
                self.choice |= choose(entry, config, plugins, checkpoint, (section,))
            except (PluginUnavailable, CheckpointError) as error:
                if not is_partial:
                    raise
                self._missing[section] = error
        self._features: dict[bytes, MediaFeatures] = {}

    @property
    def is_seeing(self) -> bool:
        """Whether it takes images."""
        return "media_encoder" in self.choice and "image" in self._encoder.media_kinds

    def context(self, *, beside_tokenizer: bool) -> BuildContext:
        """Return what a component of this model is built with, alone or beside the tokenizer."""
        return BuildContext(
            self._entry.model,
            self.checkpoint,
            revision=self._entry.revision,
            registries=self._plugins.by_kind,
            text_side=self.tokenizer if beside_tokenizer else None,
        )

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that it would be served with."""
        made: Tokenizer = self._built("tokenizer")
        return made

    def objection(self, section: str, name: str) -> str | None:
        """Say why a provider that is named cannot serve it here; None where it can."""
        provider = registry_of(self._plugins, section).get(name)
        return with_hint(provider.objection(self.checkpoint, is_named=True))

    def lack_of_prompts(self) -> str:
        """Return why its tokenizer makes no prompts to try others with; empty if it does."""
        try:
            self._asked(QUESTIONS[0])
        except VlmkitError as error:
            hint = f" ({error.hint})" if error.hint else ""
            return f"it is tried with prompts of the model's tokenizer: {error}{hint}"
        return ""

    def special_texts(self) -> list[str]:
        """Return how its vocabulary writes special tokens; empty where its files do not say."""
        added = self.checkpoint.read_json("tokenizer.json").get("added_tokens", [])
        return [token["content"] for token in added if token.get("special")]

    def prompts(self) -> list[Prompt]:
        """Return prompts of different lengths, one with an image if it takes any."""
        prompts = [self._asked(question) for question in QUESTIONS]
        return [*prompts, self._asked(QUESTIONS[1], 1)] if self.is_seeing else prompts

    def answer_ids(self) -> list[int]:
        """Return a few ordinary tokens."""
        return self.tokenizer.encode(ANSWER)[:6]

    def twins(self) -> tuple[Prompt, Prompt] | None:
        """Return two prompts that differ only in their pictures."""
        return (self._asked(ANSWER, 2), self._asked(ANSWER, 3)) if self.is_seeing else None

    def slots(self) -> list[MediaSlot]:
        """Return the slots of three pictures, of different sizes."""
        return [slot for seed in range(3) for slot in self._asked("?", seed).media]

    def features(self, prompt: Prompt) -> Mapping[int, MediaFeatures]:
        """Return what its encoder makes of the pictures of a prompt."""
        for slot in prompt.media:
            if slot.digest not in self._features:
                self._features[slot.digest] = self._encoder.encode([slot])[0]
        return {i: self._features[slot.digest] for i, slot in enumerate(prompt.media)}

    def close(self) -> None:
        """Free what was built of it."""
        if "_encoder" in vars(self):
            self._encoder.close()

    @cached_property
    def _encoder(self) -> MediaEncoder:
        made: MediaEncoder = self._built("media_encoder")
        return made

    def _built(self, section: str) -> Any:
        if section in self._missing:
            raise self._missing[section]
        name, settings = self.choice[section]
        context = self.context(beside_tokenizer=section != "tokenizer")
        return registry_of(self._plugins, section).build(name, settings, context)

    def _asked(self, question: str, seed: int | None = None) -> Prompt:
        from vlmkit_testing import picture

        sizes = {0: (48, 64), 1: (64, 48)}
        pictures = [] if seed is None else [picture(*sizes.get(seed, (56, 56)), seed=seed)]
        return self.tokenizer.prompt([Message.of("user", question, pictures)])


@dataclass(frozen=True, slots=True)
class Given:
    """What components are tried with.

    Attributes:
        model: for tokenizers, encoders and engines.
        entry: for runners: the model whose requests they answer.
        files: for media loaders: what they open; by default, files of usual formats.
        paths: for sources of single files: files that they read.
        calls_tools: whether the tools of a source may be called, which may do anything.
        environ: of the processes in which commands are tried.
    """

    model: ModelParts | None = None
    entry: ModelEntry | None = None
    files: tuple[bytes, ...] = ()
    paths: tuple[Path, ...] = ()
    calls_tools: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)


def subject_of(
    provider: Provider[Any],
    kind: Kind[Any],
    make: Callable[..., Any],
    given: Given,
    plugins: Plugins,
) -> dict[str, Any] | str:
    """Return the members of a contract's class, or why it cannot run."""
    members: dict[str, dict[str, Any]] = {
        "api": {"make": make, "requests": _skip_unknown_bodies, "chat": _skip_unknown_bodies},
        "command": {"name": provider.name, "environ": lambda: given.environ},
        "constraint": {"make": lambda vocabulary: make(vocabulary=vocabulary), "forms": None},
    }
    if kind.name in members:
        return members[kind.name]
    if kind.name == "model":
        return _source(provider, kind, plugins, given)
    if kind.name == "runner":
        return _runner(make, given)
    if kind.name == "media_loader":
        return _media_loader(make, given)
    if kind.name == "tool_source" and not given.calls_tools:
        return "calling its tools may do anything: --call-tools allows it"
    return _of_model(provider.name, kind, make, given.model)


def _of_model(
    name: str, kind: Kind[Any], make: Callable[..., Any], model: ModelParts | None
) -> dict[str, Any] | str:
    parts = {"tokenizer": _tokenizer, "media_encoder": _encoder, "engine": _engine}.get(kind.name)
    if parts is None:
        return {"make": make} if model is None else {"make": make, "checkpoint": model.checkpoint}
    if model is None:
        return "name a model: vlmkit plugins check NAME MODEL"
    if reason := model.objection(kind.name, name):
        return reason
    if kind.name == "media_encoder" and not model.is_seeing:
        return "the model takes no images"
    if kind.name != "tokenizer" and (reason := model.lack_of_prompts()):
        return reason
    return {"make": make, **parts(model)}


def _source(
    provider: Provider[Any], kind: Kind[Any], plugins: Plugins, given: Given
) -> dict[str, Any]:
    subject: dict[str, Any] = {"name": provider.name, "registry": lambda: plugins.of(kind)}
    if provider.suffixes:
        subject["files"] = lambda: given.paths
    if provider.schemes:
        subject["absent"] = lambda: f"{provider.schemes[0]}://nobody-has-this-model"
    return subject


def _runner(make: Callable[..., Any], given: Given) -> dict[str, Any] | str:
    def fail(_: object) -> None:
        import pytest

        pytest.skip("how it fails is not known here")

    if given.entry is None:
        return "name a model: vlmkit plugins check NAME MODEL"
    return {"make": make, "fail": fail}


def _media_loader(make: Callable[..., Any], given: Given) -> dict[str, Any]:
    def files() -> list[bytes]:
        import pytest

        found = list(given.files) or sample_files(make())
        if len(found) < 2:
            pytest.skip("what it opens is not known here: name two files by --file")
        return found

    return {"make": make, "files": files}


def _tokenizer(model: ModelParts) -> dict[str, Any]:
    def special_texts() -> Seq[str]:
        import pytest

        if not (texts := model.special_texts()):
            pytest.skip("the model's files do not say how special tokens are written")
        return texts

    return {
        "takes_images": model.is_seeing,
        "keeps_spaces": False,  # some templates trim messages
        "is_lossless": False,  # some normalise, and do not say so
        "keeps_places": False,  # some templates put images first, and do not say so either
        "marks_answers": False,  # and some mark no beginning of an answer
        "marks_turns": False,  # or write turns as words,
        "ends_turns": False,  # end the last answer in another way,
        "tells_roles": False,  # or know two roles
        "special_texts": special_texts,
    }


def _encoder(model: ModelParts) -> dict[str, Any]:
    return {"slots": model.slots, "sizes_differ": False}  # some models show one size


def _engine(model: ModelParts) -> dict[str, Any]:
    return {
        "prompts": model.prompts,
        "features": model.features,
        "twins": model.twins,
        "answer_ids": model.answer_ids,
    }


def _skip_unknown_bodies(*_: Any, **_options: Any) -> None:
    """Skip a test that sends requests: only the author of an API knows their bodies."""
    import pytest

    pytest.skip(
        "the bodies of its requests are not known here: inherit vlmkit_testing.ApiContract in the "
        "tests of the plugin, define requests, chat and answer_of, and run pytest"
    )
