"""The interface of samplers, which choose the next tokens of a step; no implementation.

Methods run in the engine loop's thread.
"""

from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import msgspec

from vlmkit.interfaces.prompt import Array
from vlmkit.interfaces.sequence import Sequence


class Row(msgspec.Struct, frozen=True):
    """One row of logits, and the context in which its token is chosen.

    Attributes:
        sequence: the answer, with its tokens, parameters and seed.
        ahead: drafts that precede the token to choose and are not in the sequence yet. The choice
            must be the same as if the sequence held them.
    """

    sequence: Sequence
    ahead: tuple[int, ...] = ()

    @property
    def num_output(self) -> int:
        """Number of tokens of the answer before the one to choose."""
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
"""The fields of :class:`vlmkit.types.sampling.SamplingParams` that a sampler must follow.

``xtc_probability`` includes ``xtc_threshold``, and ``dry_multiplier`` all fields of DRY.
"""


@dataclass(frozen=True, slots=True)
class SamplerClaims:
    """The properties that a sampler declares.

    Attributes:
        ignores: the fields of :data:`FOLLOWED` that it does not follow. A request that sets one is
            refused, and the model's own default for it has no effect.
        is_exact: whether plain sampling follows the softmax of the logits at the temperature. False
            for a sampler that filters or penalises tokens by itself.
    """

    ignores: frozenset[str] = frozenset()
    is_exact: bool = True


class Sampler(Protocol):
    """Chooses the next tokens of a step.

    A simple sampler prepares nothing: ``return lambda logits: logits.argmax(-1)``. A sampler that
    does not follow all of :data:`FOLLOWED`, or is not exact, must declare that. It has the
    attributes ``ignores`` and ``is_exact`` of :class:`SamplerClaims`. Without them it claims to
    follow all fields and to be exact.
    """

    def prepare(self, rows: Seq[Row]) -> Pick:
        """Prepare a step before its logits exist, and return a function that chooses the tokens.

        The choice must depend only on the logits, the sequence's tokens, the drafts ahead, the
        parameters and the seed. The rest of the batch must not change it. Drafts ahead must leave
        no state behind: other tokens may replace them.

        The function is called once with float32 logits, a NumPy array or an array on the engine's
        device, which it must not modify. On a device it must start work without waiting for it: a
        read by the host blocks all requests. A row without a finite value may get any token; the
        pipeline fails its request.

        Args:
            rows: at least one row; the logits have the same order.
        """
        ...
