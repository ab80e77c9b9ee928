"""What the contracts of an engine are tried on; no test is here."""

from collections.abc import Iterator, Mapping, Sequence as Seq

import numpy as np
import pytest

from vlmkit.seams.engine import Engine
from vlmkit.seams.features import MediaFeatures
from vlmkit.seams.prompt import Prompt
from vlmkit.testing.engine_host import EngineHost, Row
from vlmkit.testing.engine_sequence import EngineSequence


class EngineSubject:
    """What an engine's author gives, and what its tests share.

    Attributes:
        atol: largest difference of logits that counts as equal.
    """

    atol = 1e-4

    def make(self) -> Engine:
        """Return a fresh engine with room for all prompts and one more; two of them must agree."""
        raise NotImplementedError

    def prompts(self) -> list[Prompt]:
        """Return at least three prompts of different lengths.

        One should hold an image, if the engine takes images, and one should be longer than two
        blocks, if the engine shares prefixes.
        """
        raise NotImplementedError

    def features(self, prompt: Prompt) -> Mapping[int, MediaFeatures]:  # noqa: ARG002
        """Return the encoder's results for a prompt, by image."""
        return {}

    def twins(self) -> tuple[Prompt, Prompt] | None:
        """Return two prompts of equal tokens and different pictures; None without images."""
        return None

    def answer_ids(self) -> list[int]:
        """Return at least four ordinary tokens that an answer may hold."""
        prompt = self.prompts()[0]
        inside = {i for slot in prompt.media for i in range(slot.start, slot.stop)}
        return [t for i, t in enumerate(prompt.token_ids) if i not in inside][-4:]

    @pytest.fixture
    def engine(self) -> Iterator[Engine]:
        """Give the engine under test, closed afterwards."""
        made = self.make()
        yield made
        made.close()

    @pytest.fixture
    def host(self, engine: Engine) -> EngineHost:
        """Give a host that runs the engine under test."""
        return EngineHost(engine, self.features)

    @pytest.fixture
    def longest(self) -> Prompt:
        """Give the longest prompt."""
        return max(self.prompts(), key=len)

    def agree(self, row: Row, expected: Row) -> None:
        """Fail unless two rows of logits are as near as ``atol`` allows."""
        assert np.isfinite(row).all()
        np.testing.assert_allclose(row, expected, atol=self.atol, rtol=0)
        if expected.max() - np.sort(expected)[-2] > 2 * self.atol:
            assert row.argmax() == expected.argmax()

    # Helpers

    def admitted(self, host: EngineHost, prompt: Prompt) -> EngineSequence:
        """Return an admitted sequence, of which nothing is computed."""
        sequence = host.sequence(prompt)
        assert host.admit(sequence) == 0
        return sequence

    def release(self, host: EngineHost, sequences: Seq[EngineSequence]) -> None:
        """Release sequences."""
        for sequence in sequences:
            host.engine.release(sequence)

    def leave_one_chunk(self, host: EngineHost, sequence: EngineSequence) -> None:
        """Compute an admitted sequence until one chunk is left."""
        while not (item := host.chunk(sequence, max(1, len(sequence) // 2))).num_rows:
            host.step([item])
