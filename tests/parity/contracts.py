"""The contracts for a family of the zoo; tests of each library supply its components."""

import copy
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zoo
from parity import runner
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_testing import EngineContract, MediaEncoderContract


@functools.cache
def prompts_of(family: str, folder: Path) -> tuple[Prompt, ...]:
    """Return the four requests as prompts, which no test changes."""
    return tuple(runner.prompts(family, runner.config_of(folder)))


class OnFamily:
    """Gives the contracts one family's prompts.

    Attributes:
        family: its name in the zoo.
        checkpoint: its files, set before each test.
    """

    family = ""
    checkpoint: Checkpoint

    def make_encoder(self) -> MediaEncoder:
        """Return a fresh encoder."""
        raise NotImplementedError

    def all_prompts(self) -> list[Prompt]:
        """Return the four requests as prompts."""
        return list(prompts_of(self.family, self.checkpoint.path))


class EngineOnFamily(OnFamily, EngineContract):
    """The engine contract; subclasses define ``make``, which builds an engine within given limits.

    Cheap engines test every chunk border and length. Here, only borders near images are tested.
    """

    most_cuts = 7
    most_drafts = 5
    most_tokens = 200
    num_walk_steps = 50
    _encoded: dict[tuple[bytes, ...], Sequence[MediaFeatures]]

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls._encoded = {}

    def prompts(self) -> list[Prompt]:
        return self.all_prompts()[:3]

    def answer_ids(self) -> list[int]:
        return [40, 50, 60, 70]

    def features(self, prompt: Prompt) -> Mapping[int, MediaFeatures]:
        """Return copies of features that are encoded once for all tests of a class."""
        digests = tuple(slot.digest for slot in prompt.media)
        if (found := self._encoded.get(digests)) is None:
            found = self.make_encoder().encode(prompt.media) if prompt.media else []
            self._encoded[digests] = found
        return dict(enumerate(copy.deepcopy(found)))

    def twins(self) -> tuple[Prompt, Prompt] | None:
        if self.family in zoo.NAMES_TEXT:
            return None
        token = runner.config_of(self.checkpoint.path).image_token_id
        asked = runner.requests(self.family)[0]
        other = runner.Request(asked.messages, [zoo.picture(99)])
        first, second = (runner.prompt(self.family, r, token) for r in (asked, other))
        return first, second


class EncoderOnFamily(OnFamily, MediaEncoderContract):
    """The vision encoder's contract."""

    def make(self) -> MediaEncoder:
        return self.make_encoder()

    def slots(self) -> list[MediaSlot]:
        slots = [slot for prompt in self.all_prompts() for slot in prompt.media]
        return list({slot.digest: slot for slot in slots}.values())
