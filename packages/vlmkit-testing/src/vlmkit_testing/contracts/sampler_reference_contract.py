"""What every sampler must do: combine all parameters as they are documented.

Random rows and parameters are compared with a direct computation of the distribution. Cases whose
result depends on rounding are left out. Seeds are fixed, and a correct sampler meets every bound.

A sampler is detected if it ever draws a token that a filter drops or a ban forbids. The rest needs
many draws: 5,000 of each small vocabulary, about 500 of each tenth of the distribution. Those of a
tenth must differ by a third to be detected.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from vlmkit.interfaces.sampler import Row
from vlmkit.types.sampling import MAX_SEQUENCE_TOKENS, SamplingParams
from vlmkit_testing.contracts.sampler_chance_contract import check_count
from vlmkit_testing.contracts.sampler_reference import probabilities
from vlmkit_testing.contracts.sampler_subject import FOLLOWED, ROW, SamplerSubject
from vlmkit_testing.contracts.sequences import new_sequence

Numbers = np.ndarray[Any, Any]
NUM_CASES = {5: 40, 17: 40, 64: 40, 1100: 30, 5000: 8, 200_000: 6}  # by size of the vocabulary
NUM_DRAWS = {5: 48, 17: 48, 64: 48, 1100: 32, 5000: 16, 200_000: 4}
NUM_STAGES = 3  # of each answer: what an earlier one leaves must not matter
NUM_USED_TOKENS = 8  # by prompts and answers, so that penalties and runs are frequent
NUM_PARTS = 10
FILTERS = ("top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
LIKELY = 0.1
NUM_ALONE = 6  # answers with one parameter, and their tokens

LONG: dict[str, Callable[[tuple[int, ...], int], dict[str, Any]]] = {
    "repetition_penalty": lambda ids, _: {"repetition_penalty": 1 + 9 / len(ids)},
    "repeat_last_n": lambda ids, distance: {
        "repetition_penalty": 9.0,
        "repeat_last_n": distance + len(ids) - 1,
    },
    "frequency_penalty": lambda ids, _: {"frequency_penalty": 2.0 / ids.count(ids[-1])},
    "dry_multiplier": lambda ids, _: {
        "dry_multiplier": 9.0,
        "dry_base": 1.0,
        "dry_allowed_length": len(ids) - 1,
    },
    "sequence_bias": lambda ids, _: {"sequence_bias": ((ids, -9.0),)},
    "bad_words_ids": lambda ids, _: {"bad_words_ids": (ids,)},
    "no_repeat_ngram_size": lambda ids, _: {"no_repeat_ngram_size": len(ids)},
}
"""Parameters that depend on many tokens, for a run and its distance."""


NUM_LISTED = {"logit_bias": 1024, "banned_ids": 1024, "min_tokens": 256}  # and all others 8192
LISTS: dict[str, Callable[[tuple[int, ...]], dict[str, Any]]] = {
    "suppress_tokens": lambda ids: {"suppress_tokens": ids},
    "begin_suppress_tokens": lambda ids: {"begin_suppress_tokens": ids},
    "bad_words_ids": lambda ids: {"bad_words_ids": tuple((each,) for each in ids)},
    "sequence_bias": lambda ids: {"sequence_bias": tuple(((each,), -1e9) for each in ids)},
    "logit_bias": lambda ids: {"logit_bias": dict.fromkeys(ids, -100.0)},
    "repetition_penalty": lambda ids: {"repetition_penalty": 10.0},  # noqa: ARG005 - the prompt has them
    "banned_ids": lambda ids: {},  # noqa: ARG005 - and the sequence these
    "min_tokens": lambda ids: {"min_tokens": 1},  # noqa: ARG005 - and the end tokens these
}
"""Parameters that rule out each of many tokens."""


class Stage(NamedTuple):
    """Answers of equal requests that continue differently by their seeds alone.

    Attributes:
        logits: ``[vocab]``.
        rows: one for each seed.
        probs: the probability ``[vocab]`` of each token; None where it depends on rounding.
    """

    logits: Numbers
    rows: list[Row]
    probs: Numbers | None


class SamplerReferenceContract(SamplerSubject):
    """The part of the contract about combined parameters."""

    @pytest.mark.parametrize("vocab_size", NUM_CASES)
    def test_combined_parameters_act_as_documented(self, vocab_size: int) -> None:
        """Biases, penalties, bans and filters apply in the documented order, drafts included."""
        self.needs_exactness()
        sampler, chance = self.make(), np.random.default_rng(vocab_size)
        shares, last = [], []
        for _ in range(NUM_CASES[vocab_size]):
            for stage in self._stages(vocab_size, chance):
                logits: list[Any] = [stage.logits] * len(stage.rows)
                drawn: Numbers = np.array(self.pick(sampler, logits, stage.rows), np.int64)
                if (probs := stage.probs) is None:
                    continue
                params = stage.rows[0].sequence.params
                assert (probs[drawn] > 0).all(), f"a dropped token is drawn with {params}"
                shares.append(_shares(drawn, probs, chance))
                least = np.where(probs > 0, probs, 2.0).argmin()
                last.append((int((drawn == least).sum()), len(drawn), probs[least]))
        parts = np.histogram(np.concatenate(shares), NUM_PARTS, (0.0, 1.0))[0]
        for part, num in enumerate(parts.tolist()):
            what = f"tokens of the likeliest {10 * part} to {10 * part + 10} %"
            check_count(num, int(parts.sum()), 1 / NUM_PARTS, what)
        hits, draws, chances = (np.array(column, np.float64) for column in zip(*last, strict=True))
        mean = float((draws * chances).sum() / draws.sum())  # Hoeffding's bound is for the mean
        check_count(int(hits.sum()), int(draws.sum()), mean, "the last token that filters keep")

    @pytest.mark.parametrize("field", FOLLOWED)
    def test_each_parameter_alone_acts_as_documented(self, field: str) -> None:
        """From the first token of an answer on, greedy and drawn."""
        self.needs_exactness()
        self.needs(field)
        sampler = self.make()
        for seed, temperature in itertools.product(range(NUM_ALONE), (0.0, 1.0)):
            chance = np.random.default_rng(seed)
            params = FOLLOWED[field].replaced({"temperature": temperature})
            tokens = chance.integers(0, len(ROW), 4).tolist()
            sequence = new_sequence(tokens, params=params, seed=seed, eos_ids=frozenset({0}))
            for _ in range(NUM_ALONE):
                logits: Any = chance.permutation(ROW).astype(np.float32)
                with np.errstate(all="ignore"):
                    probs = probabilities(logits, Row(sequence))
                token_id = self.pick(sampler, [logits], [Row(sequence)])[0]
                assert probs is None or probs[token_id] > 0, f"{token_id} is chosen with {params}"
                sequence.output_ids.append(token_id)

    @pytest.mark.parametrize("field", FILTERS)
    def test_each_filter_keeps_what_is_documented_at_any_value(self, field: str) -> None:
        """On narrow and wide rows, at any temperature, alone and among what top-k keeps.

        Of three tokens, each one that is kept and has a probability of 0.1 comes in 320 draws: by
        chance, it is missed less than once in 10**14 times.
        """
        self.needs_exactness()
        self.needs(field, "top_k")
        sampler, chance = self.make(), np.random.default_rng(len(field))
        for vocab_size, num_draws, num_cases in ((3, 320, 24), (12, 40, 16), (700, 40, 16)):
            for number in range(num_cases):
                logits = chance.normal(0.0, (0.3, 1.0, 2.0, 4.0)[number % 4], vocab_size)
                params = self._filtered(field, vocab_size, chance)
                rows = [
                    Row(new_sequence((0,), params=params, seed=seed)) for seed in range(num_draws)
                ]
                probs = probabilities(logits.astype(np.float32), rows[0])
                if probs is None:
                    continue
                given: Any = [logits.astype(np.float32)] * num_draws
                drawn = np.array(self.pick(sampler, given, rows))
                assert (probs[drawn] > 0).all(), f"a dropped token is drawn with {params}"
                for token_id in np.flatnonzero(probs >= LIKELY).tolist():
                    num, what = int((drawn == token_id).sum()), f"token {token_id} with {params}"
                    check_count(num, num_draws, float(probs[token_id]), what)

    def _filtered(self, field: str, vocab_size: int, chance: np.random.Generator) -> SamplingParams:
        """Return a temperature, a filter with any value, and for every other one a top-k."""
        fields: dict[str, Any] = {"temperature": float(chance.choice([0.5, 1.0, 2.0]))}
        fields[field] = 10 ** -(3 * chance.random())
        if field == "top_k" or chance.random() < 0.5:
            fields["top_k"] = int(chance.integers(1, vocab_size + 1))
        return SamplingParams(**fields)

    @pytest.mark.parametrize("field", LONG)
    def test_long_texts_count_as_a_whole(self, field: str) -> None:
        """Whatever decides may be thousands of tokens back, and as long as parameters allow.

        The last token of a run is the likeliest, and the others are the newest tokens. The run
        came before, or is like it but for its first token.
        """
        self.needs_exactness()
        self.needs(field)
        sampler, chance = self.make(), np.random.default_rng(len(field))
        for distance, length in itertools.product((0, 2000), (2, 9, MAX_SEQUENCE_TOKENS)):
            run, between = chance.integers(0, 6, length), chance.integers(6, 60, distance)
            for first in (run[0], (run[0] + 1) % 6):
                ids = (int(first), *run[1:].tolist())
                tokens = [*ids, *between.tolist(), *run[:-1].tolist()]
                params = SamplingParams(**LONG[field](ids, distance))
                sequence = new_sequence(tokens[:40], params=params, output_ids=tokens[40:])
                logits: Any = chance.normal(size=64).astype(np.float32)
                logits[ids[-1]] = logits.max() + 1.5
                probs = probabilities(logits, Row(sequence))
                token_id = self.pick(sampler, [logits], [Row(sequence)])[0]
                assert probs is None or probs[token_id] > 0, (
                    f"{field}: a run of {length} tokens, {distance} tokens back"
                )

    @pytest.mark.parametrize("field", LISTS)
    def test_every_entry_of_a_long_list_counts(self, field: str) -> None:
        """The likeliest tokens are ruled out one by one; the next one is chosen."""
        self.needs_exactness()
        self.needs(*{field} - {"banned_ids"})
        num = NUM_LISTED.get(field, 8192)
        order = np.random.default_rng(num).permutation(20_000)
        logits: Any = np.empty(len(order), np.float32)
        logits[order] = np.linspace(60.0, 20.0, len(order))
        listed = tuple(order[:num].tolist())
        sequence = new_sequence(
            listed if field == "repetition_penalty" else (0,),
            params=SamplingParams(**LISTS[field](listed)),
            banned_ids=listed if field == "banned_ids" else (),
            eos_ids=frozenset(listed if field == "min_tokens" else ()),
        )
        found = self.pick(self.make(), [logits], [Row(sequence)])[0]
        assert found == order[num], f"token {found} of the list of {field} may be chosen"

    def _stages(self, vocab_size: int, chance: np.random.Generator) -> Iterator[Stage]:
        """Yield steps of answers that grow; some of their drafts are accepted."""
        likely = chance.integers(0, vocab_size, 8)
        share = 0.5 if NUM_CASES[vocab_size] < 10 else chance.choice([0.15, 0.5])
        params = self._params(likely.tolist(), share, chance)
        used = chance.integers(0, min(vocab_size, NUM_USED_TOKENS), 40).tolist()
        banned = (1,) if chance.random() < 0.25 else ()
        breakers = {5: ((),), 3: ((4,),)} if chance.random() < 0.5 else {}
        seeds = chance.integers(-(2**63), 2**63 - 1, NUM_DRAWS[vocab_size]).tolist()
        sequences = [
            new_sequence(
                used[:12],
                params=params,
                seed=seed,
                eos_ids=frozenset({0}),
                banned_ids=banned,
                dry_breakers=breakers,
            )
            for seed in seeds
        ]
        for _ in range(NUM_STAGES):
            row = _row(vocab_size, likely, chance)
            ahead = tuple(used[24 : 24 + int(chance.choice([0, 0, 1, 3]))])
            rows = [Row(sequence, ahead) for sequence in sequences]
            with np.errstate(all="ignore"):
                probs = probabilities(row, rows[0])
            is_sure = probs is not None and np.isfinite(probs).all()
            yield Stage(row, rows, probs if is_sure else None)
            chance.shuffle(used)
            more = [*ahead[: int(chance.integers(0, 3))], *used[: int(chance.integers(0, 6))]]
            for sequence in sequences:
                sequence.output_ids.extend(more)

    def _params(
        self, likely: list[int], share: float, chance: np.random.Generator
    ) -> SamplingParams:
        """Return a share of the parameters that the sampler follows, some for likely tokens."""

        def one_of(plain: Any, *values: Any) -> Any:
            return values[int(chance.integers(len(values)))] if chance.random() < share else plain

        values = {
            "temperature": one_of(1.0, 0.0, 0.4, 2.0),
            "top_p": one_of(1.0, 0.3, 0.9, 0.99),
            "top_k": one_of(0, 1, 2, 5, 40, 600),
            "min_p": one_of(0.0, 0.02, 0.3),
            "typical_p": one_of(1.0, 0.3, 0.9),
            "epsilon_cutoff": one_of(0.0, 0.001, 0.05),
            "eta_cutoff": one_of(0.0, 0.001, 0.1),
            "xtc_probability": one_of(0.0, 1.0),
            "repetition_penalty": one_of(1.0, 0.6, 1.5),
            "repeat_last_n": one_of(-1, 0, 1, 5, 100),
            "presence_penalty": one_of(0.0, -1.0, 1.5),
            "frequency_penalty": one_of(0.0, -0.5, 0.7),
            "dry_multiplier": one_of(0.0, 0.7),
            "logit_bias": one_of({}, {3: 1.5, 2: -1.0, likely[0]: 2.0}),
            "sequence_bias": one_of((), (((3,), 1.0), ((2, 3), -2.0), ((4, 2, likely[1]), 2.0))),
            "bad_words_ids": one_of((), ((0,), (4,), (2, 3), (3, 1, 2))),
            "no_repeat_ngram_size": one_of(0, 1, 2, 3),
            "suppress_tokens": one_of((), (2, *likely[2:6])),
            "begin_suppress_tokens": one_of((), (3, *likely[3:7])),
            "min_tokens": one_of(0, 1, 4, 9, 50),
        }
        plain = SamplingParams(
            xtc_threshold=one_of(0.1, 0.02, 0.3, 0.5, 0.6),
            dry_base=one_of(1.0, 1.75, 3.0),
            dry_allowed_length=one_of(1, 2, 3),
            dry_penalty_last_n=one_of(-1, 5, 12),
        )
        followed = FOLLOWED.keys() - self.ignores
        return plain.replaced({name: value for name, value in values.items() if name in followed})


def _row(vocab_size: int, likely: Numbers, chance: np.random.Generator) -> Numbers:
    """Return logits: some tokens stand out of a large vocabulary, and some are equal."""
    row = chance.normal(
        chance.choice([0.0, 0.0, -30.0, 60.0]), chance.choice([0.3, 1, 3]), vocab_size
    )
    row[likely] += np.log(max(1.0, vocab_size / 64)) + chance.uniform(0, 3, 8)
    row[: min(vocab_size, NUM_USED_TOKENS)] += np.log(max(1.0, vocab_size / 64))
    if chance.random() < 0.3:
        row = np.round(4 * row) / 4
    return row.astype(np.float32)


def _shares(drawn: Numbers, probs: Numbers, chance: np.random.Generator) -> Numbers:
    """Return the part of the distribution that each token stands for; uniform for correct draws.

    The likeliest tokens come first. A token takes a random point of its own part (the randomised
    probability integral transform).
    """
    order = np.argsort(-probs, kind="stable")
    before = np.empty_like(probs)
    before[order] = np.cumsum(probs[order]) - probs[order]
    shares: Numbers = before[drawn] + chance.random(len(drawn)) * probs[drawn]
    return np.clip(shares, 0.0, 1.0)
