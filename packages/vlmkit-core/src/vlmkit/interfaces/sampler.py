"""What a sampler must do: choose the next tokens of a step. No implementation.

Its methods run in the loop's thread.
"""

from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import msgspec

from vlmkit.interfaces.prompt import Array
from vlmkit.interfaces.sequence import Sequence


class Row(msgspec.Struct, frozen=True):
    """One row of logits: whose token is to be chosen, and after what.

    Attributes:
        sequence: its tokens, parameters and seed say how to choose.
        ahead: tokens that come after the sequence's own and are not in it: drafts. The choice is
            the one that the sequence would have if they were.
    """

    sequence: Sequence
    ahead: tuple[int, ...] = ()

    @property
    def num_output(self) -> int:
        """Tokens of the answer that come before the one to choose."""
        return len(self.sequence.output_ids) + len(self.ahead)


Pick = Callable[[Array], Array]
"""Maps logits ``[rows, vocab]`` to token ids ``[rows]``, an integer array on the same device."""


FOLLOWED = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "typical_p",
        "epsilon_cutoff",
        "eta_cutoff",
        "xtc_probability",
        "dry_multiplier",
        "repetition_penalty",
        "repeat_last_n",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "sequence_bias",
        "bad_words_ids",
        "no_repeat_ngram_size",
        "suppress_tokens",
        "begin_suppress_tokens",
        "min_tokens",
    }
)
"""The fields of :class:`vlmkit.types.sampling.SamplingParams` that are a sampler's to follow.

``xtc_threshold`` goes with ``xtc_probability``, and all of DRY with ``dry_multiplier``.
"""


@dataclass(frozen=True, slots=True)
class SamplerClaims:
    """What a sampler says of itself.

    Attributes:
        ignores: which of :data:`FOLLOWED` it does not follow. A request that asks for one of them
            is refused, and the model's own default of it has no effect.
        is_exact: whether plain sampling follows the softmax of the logits at the temperature. It
            does not where a sampler filters or lowers tokens of its own accord.
    """

    ignores: frozenset[str] = frozenset()
    is_exact: bool = True


class Sampler(Protocol):
    """Chooses the next tokens of a step.

    A simple one prepares nothing: ``return lambda logits: logits.argmax(-1)``. One that does not
    follow all of :data:`FOLLOWED`, or does more, says so by attributes ``ignores`` and ``is_exact``
    as :class:`SamplerClaims` has them; without them it claims to follow all, and to be exact.
    """

    def prepare(self, rows: Seq[Row]) -> Pick:
        """Do what can be done before the logits are there, and return what then picks the tokens.

        The choice is a function of the logits, the sequence's tokens, those that are ahead, its
        parameters and its seed: what else is in the batch never changes it. What is ahead leaves no
        trace: other tokens may take its place.

        The pick is called once, with float32 logits, which it leaves as they are: a NumPy array, or
        an array on the engine's device. There it starts work and waits for none: an array that the
        host reads makes everybody wait. A row without a finite value gets any token: the pipeline
        fails its request.

        Args:
            rows: at least one; the logits come in their order.
        """
        ...
