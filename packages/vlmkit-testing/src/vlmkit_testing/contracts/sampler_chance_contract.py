"""What every sampler must do: draw by the distribution, independently each time.

Seeds are fixed, and a correct sampler meets every bound, so the tests are stable.
"""

import itertools
import math
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import pytest

from vlmkit.interfaces.sampler import Row
from vlmkit.types.sampling import SamplingParams
from vlmkit_testing.contracts.arrays import to_numpy
from vlmkit_testing.contracts.sampler_reference import probabilities
from vlmkit_testing.contracts.sampler_subject import FRESH, ROW, SamplerSubject
from vlmkit_testing.contracts.sequences import new_sequence

NUM_DRAWS = 4000
FLAT = [0.0] * 64
PLAIN = SamplingParams(temperature=1.0)
Drawn = np.ndarray[Any, Any]
DISTANCE = 2**15
TEMPERATURES = (1.1e-5, 5e-5, 3e-4, 2e-3, 9e-3, 0.1)
NUM_SMALL_DRAWS = 100  # at each temperature; one that always takes the likeliest is detected
LARGE_LOGIT = 8.0  # its exponential overflows at small temperatures
SMALL_FILTERS = {
    "top_k": PLAIN.replaced({"top_k": 3}),
    "top_p": PLAIN.replaced({"top_p": 0.8}),
    "min_p": PLAIN.replaced({"min_p": 0.1}),
}
"""Filters that keep three or four tokens of ``ROW``."""
LEAST_LOG_CHANCE = -32.0  # 1e-14: a correct sampler never falls below it, whatever its draws


def log_chance(num_hits: int, num_draws: int, chance: float) -> float:
    """Return a bound on the log-probability of a count at least this far to its side of the mean.

    It is Chernoff's bound for independent draws: their number times the divergence of the observed
    frequencies from the expected ones (Hoeffding, 1963).
    """
    seen = num_hits / num_draws
    divergence = 0.0
    for part, expected in ((seen, chance), (1 - seen, 1 - chance)):
        if part > 0:
            divergence += part * math.log(part / expected) if expected > 0 else math.inf
    return -num_draws * divergence


def check_count(num_hits: int, num_draws: int, chance: float, what: str) -> None:
    """Fail if draws of this probability practically never give a count."""
    assert log_chance(num_hits, num_draws, chance) > LEAST_LOG_CHANCE, (
        f"{what}: {num_hits} of {num_draws} draws, expected {chance:.4g} of them"
    )


class SamplerChanceContract(SamplerSubject):
    """The part of the contract about draws."""

    # Each draw anew

    def test_each_position_draws_anew(self) -> None:
        """One seed gives different tokens at different positions."""
        self.needs("temperature")
        chosen = {
            self.choose(FLAT, PLAIN, prompt=(63,), output_ids=list(range(position)))
            for position in range(40)
        }
        assert len(chosen) > (10 if self.is_exact else 1)

    def test_draws_of_other_seeds_and_positions_are_independent(self) -> None:
        """Tokens agree as often as by chance: ``seed + position`` would repeat its neighbours.

        The seeds of several answers to one prompt are consecutive.
        """
        self.needs("temperature")
        num_seeds, num_places = 192, 6
        sequences = [
            new_sequence((63,), params=PLAIN, seed=seed, output_ids=range(place))
            for seed in range(num_seeds)
            for place in range(num_places)
        ]
        drawn = np.array(self.sample([FLAT] * len(sequences), sequences))
        drawn = drawn.reshape(num_seeds, num_places)
        for seeds, places in ((0, 1), (1, 0), (1, 1), (1, -1), (2, -1), (1, -2)):
            own, other = _shifted(drawn, seeds, places)
            what = f"draws {seeds} seeds and {places} places apart are alike"
            check_count(int((own == other).sum()), own.size, _chance_alike(own, other), what)

    def test_draws_far_apart_are_not_alike(self) -> None:
        """A counter of positions has more than 15 bits.

        One with fewer, of any number, repeats draws at this distance, which is a multiple of its
        period. By chance, 16 draws are all alike less than once in 10**14 times.
        """
        self.needs("temperature")
        answer = np.random.default_rng(0).integers(0, 60, DISTANCE + 1).tolist()
        near, far = self._draws_after(answer[:1]), self._draws_after(answer)
        what = f"draws {DISTANCE} places apart are alike"
        check_count(int((far == near).sum()), near.size, _chance_alike(near, far), what)

    def test_every_bit_of_a_seed_counts(self) -> None:
        """Also those above the first 32, and the sign."""
        self.needs("temperature")
        for sign in (1, -1):
            sequences = [new_sequence((63,), params=PLAIN, seed=sign << bit) for bit in range(63)]
            drawn = np.array(self.sample([FLAT] * 63, sequences))
            high = drawn[32:]
            num_alike = int((high[1:] == high[:-1]).sum())
            chance = _chance_alike(drawn[:32, None], drawn[:32, None])
            check_count(num_alike, len(high) - 1, chance, "draws of two high bits are alike")
        seeds = [seed for bit in range(40) for seed in (1 << bit, -(1 << bit))]
        sequences = [new_sequence((63,), params=PLAIN, seed=seed) for seed in seeds]
        pairs = np.array(self.sample([FLAT] * len(seeds), sequences)).reshape(-1, 2)
        own, other = pairs[:, :1], pairs[:, 1:]
        num_alike, chance = int((own == other).sum()), _chance_alike(own, other)
        check_count(num_alike, len(pairs), chance, "draws of a seed and its negative are alike")

    # As often as the logits say

    @pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
    def test_draws_follow_the_distribution(self, temperature: float) -> None:
        """It is the softmax at the temperature."""
        self.needs_exactness()
        weights = [math.exp(logit / temperature) for logit in ROW]
        self._check_draws(ROW, SamplingParams(temperature=temperature), weights)

    def test_draws_follow_the_distribution_at_any_temperature(self) -> None:
        """From 1e-5 on, also where a filter applies and logits over the temperature are large.

        Logits differ by about the temperature, so that every token has the same chance at each.
        """
        self.needs_exactness()
        sampler = self.make()
        filters = [params for name, params in SMALL_FILTERS.items() if name not in self.ignores]
        tried = zip(TEMPERATURES, itertools.cycle(filters or [PLAIN]), strict=False)
        for temperature, params in ((t, each) for t, own in tried for each in (PLAIN, own)):
            row = [LARGE_LOGIT + temperature * logit for logit in ROW]
            own = params.replaced({"temperature": temperature})
            rows = [
                Row(new_sequence((FRESH,), params=own, seed=seed))
                for seed in range(NUM_SMALL_DRAWS)
            ]
            drawn = self.pick(sampler, [row] * NUM_SMALL_DRAWS, rows)
            rounded = np.asarray(to_numpy(self.array([row])), np.float64)[0]
            if (chances := probabilities(rounded, rows[0])) is not None:
                _check(drawn, chances.tolist(), f" at temperature {temperature}")

    def test_flat_logits_leave_all_to_chance(self) -> None:
        """Every token of a flat row is equally frequent."""
        self.needs_exactness()
        self._check_draws(FLAT, PLAIN, [1.0] * len(FLAT))

    @pytest.mark.parametrize(("field", "value"), [("top_k", 3), ("top_p", 0.4), ("min_p", 0.5)])
    def test_filtered_tokens_are_drawn_by_their_logits(self, field: str, value: float) -> None:
        """The probability of dropped tokens goes to all kept ones in proportion."""
        self.needs(field)
        self.needs_exactness()
        row = [1.0, 0.9, 0.8] + [0.0] * 9  # three of which a half is left
        weights = [math.exp(logit) for logit in row[:3]]
        self._check_draws(row, PLAIN.replaced({field: value}), weights)

    def test_a_bias_changes_the_odds(self) -> None:
        """It is added before the temperature: a bias of 2 at temperature 2 counts as 1."""
        self.needs("logit_bias")
        self.needs_exactness()
        weights = [math.exp((logit + 2.0 * (i == 4)) / 2) for i, logit in enumerate(ROW)]
        self._check_draws(ROW, SamplingParams(temperature=2.0, logit_bias={4: 2.0}), weights)

    def test_drafts_do_not_change_how_often_a_token_comes(self) -> None:
        """The row after a draft draws like any other."""
        self.needs_exactness()
        weights = [math.exp(logit) for logit in ROW]
        rows = [
            Row(new_sequence(params=PLAIN, seed=seed, output_ids=[1]), (5, 2))
            for seed in range(NUM_DRAWS)
        ]
        drawn = self.pick(self.make(), [ROW] * NUM_DRAWS, rows)
        _check(drawn, weights)

    def _draws_after(self, answer: list[int]) -> Drawn:
        """Return the tokens ``[seeds, 1]`` that follow an answer."""
        sequences = [
            new_sequence((63,), params=PLAIN, seed=seed, output_ids=answer) for seed in range(16)
        ]
        return np.array([self.sample([FLAT] * len(sequences), sequences)]).T

    def _check_draws(self, row: Seq[float], params: SamplingParams, weights: Seq[float]) -> None:
        _check(self.draw(row, params, NUM_DRAWS), weights)


def _check(drawn: Seq[int], weights: Seq[float], where: str = "") -> None:
    """Fail unless tokens were drawn in proportion to their weights, and no others."""
    assert max(drawn) < len(weights), f"a token was drawn that has no chance{where}"
    counts = np.bincount(drawn, minlength=len(weights)).tolist()
    for token_id, (count, weight) in enumerate(zip(counts, weights, strict=True)):
        check_count(count, len(drawn), weight / sum(weights), f"token {token_id}{where}")


def _shifted(drawn: Drawn, seeds: int, places: int) -> tuple[Drawn, Drawn]:
    """Return two views of a table, shifted by rows and columns."""
    num_rows, num_columns = drawn.shape
    columns, left = num_columns - abs(places), max(0, -places)
    own = drawn[: num_rows - seeds, left : left + columns]
    other = drawn[seeds:, left + places : left + places + columns]
    return own, other


def _chance_alike(own: Drawn, other: Drawn) -> float:
    """Return how often two tables agree by chance, column by column."""
    chances = [
        np.bincount(one, minlength=len(FLAT)) @ np.bincount(another, minlength=len(FLAT))
        for one, another in zip(own.T, other.T, strict=True)
    ]
    return float(np.mean(chances) / own.shape[0] ** 2)
