"""Compares the features of all media encoders, with one encoder in memory at a time."""

from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import dataclass, field
from itertools import combinations

from vlmkit.config import Config, ModelEntry
from vlmkit.errors import EngineError, VlmkitError
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.kinds import MEDIA_ENCODER
from vlmkit.plugins.loader import Plugins
from vlmkit.running.faults.isolation import engine_error
from vlmkit.types.image import Image
from vlmkit.types.message import Message
from vlmkit_testing.verify.features import Difference, Levels, differences, levels_of
from vlmkit_testing.verify.subjects import ModelParts


@dataclass(frozen=True, slots=True)
class Pair:
    """Two encoders and the differences of their features."""

    one: str
    other: str
    levels: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class EncoderReport:
    """The result of a comparison.

    Attributes:
        names: the encoders that returned features.
        pairs: all pairs of them.
        failures: the errors of other encoders, by name.
    """

    names: tuple[str, ...]
    pairs: tuple[Pair, ...]
    failures: Mapping[str, str] = field(default_factory=dict)

    def is_within(self, tolerance: float) -> bool:
        """Whether every encoder returned features, and all agree."""
        levels = [level for pair in self.pairs for level in pair.levels]
        return not self.failures and all(level.is_within(tolerance) for level in levels)


class EncoderComparison:
    """Compares the encoders of one model.

    Args:
        entry: the model that was asked for.
        config: settings of its tokenizer, and of the encoder that it would be served with.
        plugins: who offers encoders.
        checkpoint: its files.
    """

    def __init__(
        self, entry: ModelEntry, config: Config, plugins: Plugins, checkpoint: Checkpoint
    ) -> None:
        self._plugins = plugins
        self._checkpoint = checkpoint
        self._model = ModelParts(entry, config, plugins, checkpoint)

    @property
    def is_seeing(self) -> bool:
        """Whether the model would be served with a media encoder."""
        return self._model.is_seeing

    def names(self) -> list[str]:
        """Return who can encode for this model here, the one it would be served with first."""
        able = [
            name
            for name, reason in self._plugins.media_encoders.objections(self._checkpoint).items()
            if reason is None
        ]
        chosen = self._model.choice["media_encoder"][0]
        return sorted(able, key=lambda name: (name != chosen, name))

    def run(
        self, names: Seq[str], images: Seq[Image], on_stage: Callable[[str], None]
    ) -> EncoderReport:
        """Encode the images with each encoder in turn and compare all pairs.

        Raises:
            PluginError: a name is unknown, or its encoder cannot serve this model here.
            RequestError: the tokenizer refuses the images.
        """
        for name in names:
            self._plugins.media_encoders.choose(name, self._checkpoint)
        slots = self._slots(images)
        found: dict[str, list[Levels]] = {}
        failures: dict[str, str] = {}
        for name in names:
            on_stage(f"media encoder {name}")
            try:
                found[name] = self._levels(name, slots)
            except VlmkitError as error:
                failures[name] = str(error)
        pairs = [
            Pair(one, other, tuple(differences(found[one], found[other])))
            for one, other in combinations(found, 2)
        ]
        return EncoderReport(tuple(found), tuple(pairs), failures)

    def _slots(self, images: Seq[Image]) -> tuple[MediaSlot, ...]:
        return self._model.tokenizer.prompt([Message.of("user", "What is this?", images)]).media

    def _levels(self, name: str, slots: Seq[MediaSlot]) -> list[Levels]:
        """Load one encoder, use it and close it, so that the next one has its memory."""
        chosen, settings = self._model.choice["media_encoder"]
        encoder = self._plugins.of(MEDIA_ENCODER).build(
            name, settings if name == chosen else {}, self._model.context(beside_tokenizer=True)
        )
        try:
            features = encoder.encode(slots)
            levels: list[Levels] = [levels_of(one) for one in features]
        except Exception as error:
            message = f"media encoder {name!r} failed on these images"
            raise engine_error(message, error) from error
        finally:
            encoder.close()
        if len(levels) != len(slots):
            raise EngineError(
                f"media encoder {name!r} gave features of {len(levels)} images, "
                f"expected {len(slots)}"
            )
        return levels
