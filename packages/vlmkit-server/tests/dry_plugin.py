"""A plugin in a file: a sampler with request fields and per-sequence state.

DRY ("don't repeat yourself") lowers the logit of a token that would extend a repeated run of
tokens. The penalty is ``multiplier * base ** (length of the run - allowed_length)``. A breaker,
such as a line break, ends a run.
"""

from typing import Annotated

import array_api_compat
import msgspec
import numpy as np
from msgspec import Meta

import vlmkit
from vlmkit.interfaces.request_field import RequestField
from vlmkit.interfaces.sampler import FOLLOWED
from vlmkit.kit.per_sequence import PerSequence

VLMKIT_API = (1, 0)


class Dry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The request field ``dry``.

    Attributes:
        multiplier: penalty of a run of the allowed length; 0 disables it.
        base: factor of the penalty for each further token.
        allowed_length: number of tokens that may repeat.
    """

    multiplier: Annotated[float, Meta(ge=0, le=100)] = 0.8
    base: Annotated[float, Meta(ge=1, le=8)] = 1.75
    allowed_length: Annotated[int, Meta(ge=1, le=1000)] = 2


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section ``[sampler]``.

    Attributes:
        breakers: texts that end a run.
    """

    breakers: tuple[str, ...] = ("\n",)


class Deadline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request field for the scheduler of this plugin.

    Attributes:
        seconds: the deadline.
    """

    seconds: Annotated[float, Meta(gt=0)]


DRY = RequestField("dry", Dry)
DEADLINE = RequestField("deadline", Deadline, changes="nothing")


class Runs:
    """For each token of a sequence, the length of the run that ends there and that the newest
    tokens repeat."""

    def __init__(self, breakers):
        self.breakers = breakers
        self.token_ids = np.zeros(0, np.int64)
        self.lengths = np.zeros(0, np.int64)

    def push(self, token_ids):
        for token_id in token_ids:
            before = np.concatenate([[0], self.lengths[:-1]])[: len(self.token_ids)]
            is_alike = (self.token_ids == token_id) & (token_id not in self.breakers)
            self.lengths = np.append(np.where(is_alike, before + 1, 0), 0)
            self.token_ids = np.append(self.token_ids, token_id)
        return self

    def copy(self):
        made = Runs(self.breakers)
        made.token_ids, made.lengths = self.token_ids, self.lengths
        return made

    def lowered(self, dry, row):
        """Raise the penalties of tokens that would extend a run, in a row of the logits' width."""
        long = np.flatnonzero(self.lengths[:-1] >= dry.allowed_length)
        followers, lengths = self.token_ids[long + 1], self.lengths[long]
        is_known = followers < len(row)
        exponents = np.minimum(lengths[is_known] - dry.allowed_length, 200)
        costs = np.minimum(dry.multiplier * dry.base**exponents, 1e4)
        np.maximum.at(row, followers[is_known], costs.astype(np.float32))


class DrySampler:
    """Samples like the built-in sampler, from logits with penalties for repeated runs."""

    is_exact = True  # penalties apply only to requests with the field

    def __init__(self, breakers):
        self._plain = vlmkit.ArraySampler()
        self._runs = PerSequence(lambda sequence: Runs(breakers).push(sequence.prompt.token_ids))

    def prepare(self, rows):
        pick = self._plain.prepare(rows)
        requested = [(index, DRY.of(row.sequence)) for index, row in enumerate(rows)]
        runs = [
            (index, dry, self._run(rows[index]))
            for index, dry in requested
            if dry and dry.multiplier
        ]

        def pick_anew(logits):
            if not runs:
                return pick(logits)
            xp = array_api_compat.array_namespace(logits)
            costs = np.zeros(logits.shape, np.float32)
            for index, dry, run in runs:
                run.lowered(dry, costs[index])
            return pick(logits - xp.asarray(costs, device=array_api_compat.device(logits)))

        return pick_anew

    def _run(self, row):
        sequence, kept = row.sequence, self._runs.of(row.sequence)
        kept.push(sequence.tokens(len(kept.token_ids), len(sequence)))
        return kept.copy().push(row.ahead)


class Greedy:
    """Takes the most likely token that is not banned, and ignores all parameters."""

    ignores = FOLLOWED

    def prepare(self, rows):
        def pick(logits):
            allowed = np.array(logits)
            for index, row in enumerate(rows):
                allowed[index, list(row.sequence.banned_ids)] = -np.inf
            return allowed.argmax(-1)

        return pick


def build(context):
    tokenizer, texts = context.tokenizer, [text.encode() for text in context.settings.breakers]
    pieces = ((i, tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size))
    return DrySampler(frozenset(i for i, piece in pieces if any(t in piece for t in texts)))


def build_scheduler(context):
    return vlmkit.ContinuousScheduler()


@vlmkit.hookimpl
def vlmkit_register_samplers(registry):
    registry.add("dry", build, settings=Settings, request_fields=(DRY,))
    registry.add("greedy", lambda context: Greedy())


@vlmkit.hookimpl
def vlmkit_register_schedulers(registry):
    registry.add("patient", build_scheduler, request_fields=(DEADLINE,))
