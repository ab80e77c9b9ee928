"""The loop commits an answer's tokens to the engine at each full block, not at each token."""

import pytest

from mock_model import hesitant, script
from vlmkit.types.message import Message
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams
from vlmkit_mock.engine import MockEngine

BLOCK_TOKENS = 16
REQUEST = Request(
    messages=[Message.of("user", script(text="on and on and on"))],
    params=SamplingParams(max_tokens=60, ignore_eos=True),
)


class RecordingEngine(MockEngine):
    """Records what the loop commits."""

    def __init__(self, settings):
        super().__init__(settings)
        self.commits = []

    def commit(self, sequence, num_tokens):
        self.commits.append(num_tokens)
        super().commit(sequence, num_tokens)


class PartlyCorrectProposer:
    """Proposes ``num_right`` correct tokens, then a wrong one."""

    def __init__(self, known, num_right):
        self.known = known
        self.num_right = num_right

    def propose(self, sequence, num_tokens):
        done = len(sequence.output_ids)
        return [*self.known[done : done + self.num_right], 0][:num_tokens]

    def note(self, sequence, num_drafted, num_accepted):
        pass

    def forget(self, sequence):
        pass


def commits_of(proposer=None, **options):
    """Return the commits, the length of the prompt, and the answer's tokens."""
    with hesitant(proposer, RecordingEngine, **options) as model:
        done = model.submit(REQUEST).result()
        return model.runner._engine.commits, len(done.prompt_token_ids), done.choices[0].token_ids


def test_an_answer_is_committed_whenever_a_block_is_full():
    found, num_prompt, output_ids = commits_of()
    num_computed = num_prompt + len(output_ids) - 1
    ends = [n for n in range(num_prompt + 1, num_computed + 1) if n % BLOCK_TOKENS == 0]
    assert [n for n in found if n > num_prompt] == ends
    assert len(ends) > 2


@pytest.mark.parametrize("num_right", [0, 1, 2, 3, 5, 7])
def test_no_full_block_is_missed_when_drafts_cross_its_end(num_right):
    _, num_prompt, output_ids = commits_of()
    found, _, with_drafts = commits_of(PartlyCorrectProposer(output_ids, num_right))
    last = found[-1] // BLOCK_TOKENS
    assert with_drafts == output_ids
    assert [n // BLOCK_TOKENS for n in found if n > num_prompt] == list(
        range(num_prompt // BLOCK_TOKENS + 1, last + 1)
    )
    assert last >= (num_prompt + len(output_ids) - 2 - num_right) // BLOCK_TOKENS


def test_an_engine_without_prefix_sharing_gets_no_commits():
    assert commits_of(shares_prefixes=False)[0] == []
