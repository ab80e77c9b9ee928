"""A proposer with random guesses passes the contract unchanged."""

from honest.proposer import ChanceProposer

from vlmkit_testing import ProposerContract


class TestAProposerWithRandomGuesses(ProposerContract):
    def make(self) -> ChanceProposer:
        return ChanceProposer()
