"""A proposer whose guesses come by chance keeps the contract, as it is."""

from honest.proposer import ChanceProposer

from vlmkit_testing import ProposerContract


class TestAProposerThatGuessesByChance(ProposerContract):
    def make(self) -> ChanceProposer:
        return ChanceProposer()
