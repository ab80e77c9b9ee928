"""The proposer keeps vlmkit's contract, and guesses from the text so far."""

from vlmkit.interfaces.proposer import Proposer
from vlmkit_testing import ProposerContract, new_sequence
from vlmkit_yourname.plugin import EchoProposer, EchoSettings


class TestEchoProposer(ProposerContract):
    def make(self) -> Proposer:
        return EchoProposer()


def test_it_drafts_the_tokens_after_the_last_occurrence() -> None:
    proposer, sequence = EchoProposer(), new_sequence([1, 2, 3, 4, 5], output_ids=[1, 2])
    assert list(proposer.propose(sequence, 8)) == [3]


def test_the_answers_of_a_step_are_drafted_in_one_call() -> None:
    sequences = [new_sequence([1, 2, 3], output_ids=[1, 2]), new_sequence([4, 5, 6, 4, 5])]
    found = EchoProposer().propose_all(sequences, [8, 1])
    assert [list(drafts) for drafts in found] == [[3], [6]]


def test_what_is_new_is_left_alone() -> None:
    assert list(EchoProposer().propose(new_sequence([1, 2, 3, 4, 5]), 8)) == []


def test_guesses_that_stand_become_more_and_others_fewer() -> None:
    proposer, lengths = EchoProposer(EchoSettings(max_draft_tokens=4)), []
    sequence = new_sequence([1, 2, 3, 4, 5, 6, 7, 8, 9], output_ids=[1, 2])
    for num_accepted in (1, 2, 4, 0, 0):
        guesses = list(proposer.propose(sequence, 8))
        lengths.append(len(guesses))
        proposer.note(sequence, len(guesses), num_accepted)
    assert lengths == [1, 2, 4, 4, 2]
