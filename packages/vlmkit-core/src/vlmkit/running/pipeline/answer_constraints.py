"""What limits the tokens of an answer: its constraint, token rules and the thinking budget."""

from collections.abc import Sequence as Seq
from typing import Any, NamedTuple, Self

from vlmkit.errors import ConstraintError, RequestError
from vlmkit.interfaces.cancellation import Cancellation
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.running.constraints.compiled import Constraints
from vlmkit.running.constraints.thinking_budget import thinking_budget
from vlmkit.running.constraints.token_rules import (
    AllowedTokens,
    BadWords,
    Rule,
    RuledGrammarState,
    spellings,
)
from vlmkit.running.constraints.tool_calls import AnswerPlan, without_compiler
from vlmkit.running.faults.attribution import ComponentNames, attributing
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams


class SpecialTokens(NamedTuple):
    """The special tokens of a model that its output has columns for.

    Attributes:
        eos_ids: tokens that end an answer.
        banned_ids: tokens that are never sampled, ascending.
    """

    eos_ids: frozenset[int]
    banned_ids: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocab_size: int) -> Self:
        """Return those of a tokenizer; some checkpoints name tokens beyond the vocabulary."""
        known = range(vocab_size)
        return cls(
            frozenset(each for each in tokenizer.eos_ids if each in known),
            tuple(sorted(each for each in tokenizer.banned_ids if each in known)),
        )


class AnswerConstraints:
    """Makes the grammar states of a request's answers.

    Args:
        constraints: compiles constraints; None where no plugin does.
        tokenizer: spells words and knows the marks of reasoning.
        vocab_size: columns of the logits.
        special_tokens: of the model.
        names: what errors call the components.

    Attributes:
        special_tokens: as given.
    """

    def __init__(
        self,
        constraints: Constraints | None,
        tokenizer: Tokenizer,
        vocab_size: int,
        special_tokens: SpecialTokens,
        names: ComponentNames,
    ) -> None:
        self._constraints = constraints
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self.special_tokens = special_tokens
        self._names = names

    @property
    def has_compiler(self) -> bool:
        """Whether constraints can be compiled."""
        return self._constraints is not None

    def prepare(self) -> None:
        """Make the compiler now, so that the first request with a constraint need not wait.

        Raises:
            VlmkitError: it could not be made.
        """
        if self._constraints is not None:
            self._constraints.prepare()

    def grammar_states(
        self,
        request: Request,
        plan: AnswerPlan,
        params: SamplingParams,
        scope: bytes,
        cancellation: Cancellation,
    ) -> Seq[Any]:
        """Return the grammar state of each choice; None for a choice that nothing limits.

        Raises:
            RequestError: the constraint or a rule is not possible.
        """
        self._check(plan, params)
        states: Seq[Any] = [None] * params.n
        if plan.constraint is not None and self._constraints is not None:
            account = request.account or request.tenant
            states = self._constraints.grammar_states(
                plan.constraint, params.n, scope, account, cancellation
            )
        rules = self._rules(params, plan.banned_ids.union(self.special_tokens.banned_ids))
        with attributing(self._names, "tokenizer", "the marks of reasoning"):
            budget = thinking_budget(params.thinking_token_budget, plan.prompt, self._tokenizer)
        if not rules and budget is None:
            return states
        return [
            RuledGrammarState([*rules, *([budget()] if budget else [])], self._vocab_size, state)
            for state in states
        ]

    def _check(self, plan: AnswerPlan, params: SamplingParams) -> None:
        """Raise ConstraintError if nothing enforces the constraint, or a parameter excludes it."""
        if plan.constraint is None:
            return
        if self._constraints is None:
            raise without_compiler(
                "no plugin is in use here that keeps an answer within a constraint"
            )
        if params.ignore_eos:
            raise ConstraintError("ignore_eos and a constraint exclude each other")

    def _rules(self, params: SamplingParams, banned_ids: frozenset[int]) -> list[Rule]:
        """Return the token rules of a request; raise RequestError if they leave no token."""
        rules: list[Rule] = []
        if params.allowed_token_ids:
            banned = banned_ids.union(params.suppress_tokens)
            if params.min_tokens:
                banned = banned.union(self.special_tokens.eos_ids, params.stop_token_ids)
            if banned.issuperset(params.allowed_token_ids):
                raise RequestError(
                    "none of allowed_token_ids may be chosen by this model at first",
                    param="allowed_token_ids",
                )
            rules.append(AllowedTokens(params.allowed_token_ids, self._vocab_size))
        if params.bad_words:
            with attributing(self._names, "tokenizer", "bad_words"):
                words = spellings(params.bad_words, self._tokenizer.encode)
            rules.append(BadWords(words))
        return rules
