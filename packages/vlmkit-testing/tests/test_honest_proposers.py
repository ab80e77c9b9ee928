"""Proposers with random and with simple guesses pass the contract unchanged."""

from honest.proposer import ChanceProposer, EchoProposer

from vlmkit_testing import ProposerContract


class TestAProposerWithRandomGuesses(ProposerContract):
    def make(self) -> ChanceProposer:
        return ChanceProposer()


class TestAProposerThatRepeatsTheNewestToken(ProposerContract):
    def make(self) -> EchoProposer:
        return EchoProposer()
