"""The subject of the engine contracts: what an author provides, and shared helpers. No tests."""

from collections.abc import Iterator, Mapping, Sequence as Seq
from functools import cached_property
from itertools import cycle, islice

import numpy as np
import pytest

from vlmkit.interfaces.engine import Engine, EngineLimits
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.step import WorkItem
from vlmkit_testing.contracts.engine_host import EngineHost, Row
from vlmkit_testing.contracts.engine_sequence import EngineSequence


class EngineSubject:
    """What an engine's author provides, and what the tests share.

    Attributes:
        atol: the largest difference of logits that counts as equal.
        most_tokens: the longest sequence that is tried. :meth:`make` should state limits below it:
            claims beyond it are not tried.
        most_cuts: at how many positions each prompt is cut in two.
        most_drafts: the largest number of drafts of an item.
    """

    atol = 1e-4
    most_tokens = 512
    most_cuts = 64
    most_drafts = 32

    def make(self) -> Engine:
        """Return a new engine with capacity for all prompts and one more; two of them must agree.

        An engine with fewer slots is tried with as many sequences.
        """
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

    def reference(self, prompt: Prompt) -> Row | list[int] | None:  # noqa: ARG002
        """Return the reference for a prompt; None without one.

        An array is the logits of its last token, which must agree within ``atol``. A list is the
        tokens of greedy decoding.
        """
        return None

    def answer_ids(self) -> list[int]:
        """Return at least four ordinary tokens that an answer may contain."""
        return self._outside_media()[-4:]

    @pytest.fixture
    def engine(self) -> Iterator[Engine]:
        """Yield the engine under test, and close it."""
        made = self.make()
        yield made
        made.close()

    @pytest.fixture
    def host(self, engine: Engine) -> EngineHost:
        """Yield a host of the engine under test."""
        return EngineHost(engine, self.features)

    @pytest.fixture
    def longest(self) -> Prompt:
        """Yield the longest prompt."""
        return max(self.asked, key=len)

    @cached_property
    def asked(self) -> list[Prompt]:
        """The prompts, made once for each test."""
        return self.prompts()

    @property
    def shortest(self) -> Prompt:
        """The shortest prompt."""
        return min(self.asked, key=len)

    def agree(self, row: Row, expected: Row) -> None:
        """Fail unless two rows of logits agree within ``atol``."""
        assert np.isfinite(row).all()
        np.testing.assert_allclose(row, expected, atol=self.atol, rtol=0)
        if expected.max() - np.sort(expected)[-2] > 2 * self.atol:
            assert row.argmax() == expected.argmax()

    # Helpers

    def _outside_media(self) -> list[int]:
        """Return the tokens of the first prompt that are no placeholders."""
        prompt = self.asked[0]
        inside = {i for slot in prompt.media for i in range(slot.start, slot.stop)}
        return [t for i, t in enumerate(prompt.token_ids) if i not in inside]

    def tokens(self, num_tokens: int) -> list[int]:
        """Return a number of ordinary tokens."""
        return list(islice(cycle(self.answer_ids()), num_tokens))

    def another(self, token_id: int) -> int:
        """Return another ordinary token.

        A small tokenizer may use one token for a whole answer.
        """
        others = (t for t in (*self.answer_ids(), *self._outside_media()) if t != token_id)
        if (found := next(others, None)) is None:
            pytest.skip("answer_ids() and prompts() have one token alone")
        return found

    def grown(self, prompt: Prompt, num_tokens: int) -> list[int]:
        """Return an answer with which a prompt has a number of tokens."""
        return self.tokens(num_tokens - len(prompt))

    def admitted(self, host: EngineHost, prompt: Prompt, answer: Seq[int] = ()) -> EngineSequence:
        """Return an admitted sequence, nothing of which is computed."""
        sequence = host.sequence(prompt, answer)
        assert host.admit(sequence) == 0, "there is no room, or a cached prefix of another scope"
        return sequence

    def together(self, limits: EngineLimits) -> list[Prompt]:
        """Return as many of the prompts as can be admitted at once.

        Skip without two of them.
        """
        if limits.max_sequences < 2:
            pytest.skip("this engine takes one sequence at a time")
        return self.asked[: limits.max_sequences]

    def release(self, host: EngineHost, sequences: Seq[EngineSequence]) -> None:
        """Release sequences."""
        for sequence in sequences:
            host.engine.release(sequence)

    def run(self, host: EngineHost, prompt: Prompt, scope: bytes = b"a") -> int:
        """Compute a prompt and release it; return how many of its tokens were cached."""
        sequence = host.sequence(prompt, scope=scope)
        num_cached = host.admit(sequence)
        assert num_cached is not None
        host.prefill(sequence)
        host.engine.release(sequence)
        return num_cached

    def fill(self, host: EngineHost, prompt: Prompt, answer: Seq[int] = ()) -> list[EngineSequence]:
        """Admit sequences until there is no room."""
        admitted: list[EngineSequence] = []
        while host.admit(sequence := host.sequence(prompt, answer)) is not None:
            admitted.append(sequence)
            most = host.engine.limits.max_sequences
            assert len(admitted) <= most, "more than limits.max_sequences are admitted"
        assert admitted, "not even one sequence is admitted"
        return admitted

    def room(self, host: EngineHost) -> tuple[int, int]:
        """Return how many of the shortest prompt fit, and how far the last of them may grow.

        Nothing may be admitted.
        """
        admitted = self.fill(host, self.shortest)
        longest = min(host.engine.limits.max_sequence_tokens, self.most_tokens)
        most = max(n for n in range(longest + 1) if host.engine.reserve(admitted[-1], n))
        self.release(host, admitted)
        return len(admitted), most

    def leave_one_chunk(self, host: EngineHost, sequence: EngineSequence) -> None:
        """Compute an admitted sequence until one chunk is left."""
        while not (item := host.chunk(sequence, max(1, len(sequence) // 2))).num_rows:
            host.step([item])

    def rows_of(self, host: EngineHost, items: Seq[WorkItem]) -> Row:
        """Compute chunks in one step, or one by one if the engine does not claim mixed steps."""
        if host.engine.limits.mixes_prefill_and_decode:
            return host.step(items)
        return np.concatenate([host.step([item]) for item in items])

    def needs_sharing(self, engine: Engine) -> int:
        """Return the tokens of a block; skip if the engine shares no blocks."""
        if not (block_tokens := engine.limits.prefix_block_tokens):
            pytest.skip("this engine does not claim to share prefixes")
        longest = max(map(len, self.asked))
        assert longest > 2 * block_tokens, "give a prompt that is longer than two blocks"
        return block_tokens
