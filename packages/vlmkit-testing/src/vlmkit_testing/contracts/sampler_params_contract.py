"""What every sampler must do: the effect of each parameter, and the sampler's claims.

The newest token of each given answer occurs once, so a sampler's own measures against repetition
have no effect.
"""

import numpy as np
import pytest

from vlmkit.types.sampling import SamplingParams
from vlmkit_testing.contracts.sampler_subject import FOLLOWED, FRESH, ROW, SamplerSubject

NUM_DRAWS = 1500  # of a chance of 2 %, none meets it once in 10**13 times
PLAIN = SamplingParams(temperature=1.0)


class SamplerParamsContract(SamplerSubject):
    """The part of the contract about parameters."""

    # Claims

    def test_only_sampling_parameters_are_ignored(self) -> None:
        """Bans and masks are no parameters and cannot be ignored."""
        assert self.ignores <= set(FOLLOWED), "it ignores what is no parameter of a sampler"

    @pytest.mark.parametrize("field", FOLLOWED)
    def test_an_ignored_parameter_changes_nothing(self, field: str) -> None:
        """Clients are told that it has no effect."""
        if field not in self.ignores:
            pytest.skip(f"this sampler follows {field}")
        params = FOLLOWED[field]
        plain = SamplingParams(temperature=0.0 if field == "temperature" else params.temperature)
        for row in (ROW, ROW[::-1], [0.1 * logit for logit in ROW]):
            for seed in range(100):
                fields = {"seed": seed, "output_ids": [0, FRESH], "eos_ids": frozenset({0})}
                asked = self.choose(row, params, prompt=(1, 0), **fields)
                assert asked == self.choose(row, plain, prompt=(1, 0), **fields), field

    # Temperature

    def test_temperature_zero_takes_the_likeliest(self) -> None:
        """With any seed."""
        assert {self.choose(ROW, seed=seed) for seed in range(50)} == {0}

    def test_a_temperature_of_next_to_nothing_takes_the_likeliest(self) -> None:
        """Dividing logits by it would overflow."""
        row = [87.9, 88.0, -70.0, -88.0]
        for temperature in (9e-6, 1e-30, 5e-324):
            params = SamplingParams(temperature=temperature)
            assert {self.choose(row, params, seed=seed) for seed in range(20)} == {1}

    # Filters

    def test_top_k_keeps_the_likeliest(self) -> None:
        """With 2, both occur and no third; with 1, the likeliest."""
        self.needs("top_k", "temperature")
        self._keeps(ROW, PLAIN.replaced({"top_k": 2}), {0, 1})
        self._keeps(ROW, SamplingParams(temperature=2.0, top_k=1), {0})

    def test_top_k_may_be_more_than_there_are(self) -> None:
        """Zero, the vocabulary size and more keep all."""
        self.needs("top_k", "temperature")
        row = [0.5, 0.4, 0.3, 0.2]
        for top_k in (0, 4, 5, 1_000_000):
            self._keeps(row, PLAIN.replaced({"top_k": top_k}), {0, 1, 2, 3})

    def test_top_p_keeps_the_smallest_set_that_reaches_it(self) -> None:
        """Probabilities of the row are 0.56, 0.21, 0.13, 0.08, ...: 0.7 needs two of them.

        At a temperature of 2 they are 0.36, 0.22, 0.17, ...: 0.7 needs three.
        """
        self.needs("top_p", "temperature")
        self._keeps(ROW, PLAIN.replaced({"top_p": 0.7}), {0, 1})
        self._keeps(ROW, SamplingParams(temperature=2.0, top_p=0.7), {0, 1, 2})

    def test_top_p_counts_what_top_k_keeps(self) -> None:
        """Probabilities of three are 0.63, 0.23 and 0.14: 0.8 needs two; of all it needs three."""
        self.needs("top_p", "top_k", "temperature")
        self._keeps(ROW, PLAIN.replaced({"top_k": 3, "top_p": 0.8}), {0, 1})
        self._keeps(ROW, PLAIN.replaced({"top_k": 3, "top_p": 0.9}), {0, 1, 2})

    def test_top_p_keeps_one_at_least(self) -> None:
        """At any value."""
        self.needs("top_p", "temperature")
        self._keeps(ROW[::-1], PLAIN.replaced({"top_p": 1e-9}), {5})

    def test_min_p_drops_what_is_unlikely_beside_the_likeliest(self) -> None:
        """Ratios to the first are 0.37, 0.22, 0.14, ...: 0.3 keeps two.

        At a temperature of 2 they are 0.61, 0.47, 0.37, 0.22, ...: 0.3 keeps four.
        """
        self.needs("min_p", "temperature")
        self._keeps(ROW, PLAIN.replaced({"min_p": 0.3}), {0, 1})
        self._keeps(ROW, SamplingParams(temperature=2.0, min_p=0.3), {0, 1, 2, 3})
        self._keeps(ROW, PLAIN.replaced({"min_p": 1.0}), {0})

    def test_typical_p_keeps_what_is_nearest_to_the_mean_surprise(self) -> None:
        """Probabilities are 0.5, 0.2, 0.1 and less, their mean surprise is 1.43, that of 0.2 1.61.

        The likeliest token comes second.
        """
        self.needs("typical_p")
        self.needs_exactness()
        row = np.log([0.5, 0.2, 0.1, 0.1, 0.05, 0.05]).tolist()
        self._keeps(row, PLAIN.replaced({"typical_p": 0.15}), {1})
        self._keeps(row, PLAIN.replaced({"typical_p": 0.6}), {0, 1})

    def test_an_epsilon_drops_what_is_less_likely_after_other_filters(self) -> None:
        """Probabilities of the row are 0.56, 0.21, 0.13, 0.08, ...; of two, 0.73 and 0.27."""
        self.needs("epsilon_cutoff", "top_k")
        self.needs_exactness()
        self._keeps(ROW, PLAIN.replaced({"epsilon_cutoff": 0.1}), {0, 1, 2})
        self._keeps(ROW, PLAIN.replaced({"epsilon_cutoff": 0.9}), {0})
        self._keeps(ROW, SamplingParams(temperature=2.0, epsilon_cutoff=0.15), {0, 1, 2})
        self._keeps(ROW, PLAIN.replaced({"epsilon_cutoff": 0.25, "top_k": 2}), {0, 1})

    def test_an_eta_drops_the_less_the_more_is_open(self) -> None:
        """The entropy of the row is 1.24, so 0.25 drops what is under 0.14; a flat row stays."""
        self.needs("eta_cutoff")
        self.needs_exactness()
        self._keeps(ROW, PLAIN.replaced({"eta_cutoff": 0.25}), {0, 1})
        self._keeps([0.0] * 5, PLAIN.replaced({"eta_cutoff": 0.9}), {0, 1, 2, 3, 4})

    def test_xtc_drops_the_likeliest_but_for_the_last_over_its_threshold(self) -> None:
        """Probabilities of the row are 0.56, 0.21, 0.13, 0.08, ...; other filters come first."""
        self.needs("xtc_probability", "top_k")
        self.needs_exactness()
        always = PLAIN.replaced({"xtc_probability": 1.0})
        self._keeps(ROW, always.replaced({"xtc_threshold": 0.1}), {2, 3, 4, 5})
        self._keeps(ROW, always.replaced({"xtc_threshold": 0.3}), {0, 1, 2, 3, 4, 5})
        self._keeps(ROW, always.replaced({"xtc_threshold": 0.1, "top_k": 2}), {1})
        self._keeps(ROW, always.replaced({"xtc_threshold": 0.51}), {0, 1, 2, 3, 4, 5})
        assert self.choose(ROW, always.replaced({"temperature": 0.0})) == 0

    def test_xtc_applies_with_its_probability(self) -> None:
        """The likeliest of two is drawn in the draws without it: 60 % of 88 %."""
        self.needs("xtc_probability")
        self.needs_exactness()
        params = PLAIN.replaced({"xtc_probability": 0.4})
        drawn = self.draw([2.0, 0.0, -90.0, -90.0], params, NUM_DRAWS)
        assert abs(drawn.count(0) / NUM_DRAWS - 0.6 * 0.88) < 0.07  # five deviations

    @pytest.mark.parametrize("field", ["top_k", "top_p", "min_p"])
    def test_equal_logits_are_kept_or_dropped_together(self, field: str) -> None:
        """Three tokens are second, and a filter that keeps one of them keeps all."""
        self.needs(field, "temperature")
        value = {"top_k": 2, "top_p": 0.6, "min_p": 0.3}[field]
        params = PLAIN.replaced({field: value})
        self._keeps([1.0, 2.0, 1.0, -4.0, 1.0], params, {0, 1, 2, 4})

    def test_filters_work_on_rows_of_every_size(self) -> None:
        """A large vocabulary need not be sorted, but no token is lost."""
        self.needs("top_k", "top_p", "temperature")
        row = [0.0] * 5000
        row[4321] = row[17] = 20.0
        for params in (PLAIN.replaced({"top_k": 2}), PLAIN.replaced({"top_p": 0.99})):
            self._keeps(row, params, {17, 4321}, num_draws=60)

    @pytest.mark.parametrize("field", ["top_k", "top_p", "min_p", "temperature"])
    def test_a_filter_that_keeps_most_of_many_keeps_the_last_too(self, field: str) -> None:
        """A fixed number of candidates would not do: thousands may be equally likely."""
        self.needs(field)
        self.needs_exactness()
        row = [-1e-5 * place for place in range(5000)]
        value = {"top_k": 4900, "top_p": 0.98, "min_p": 0.9, "temperature": 1.0}[field]
        params = PLAIN.replaced({field: value})
        chosen = [self.choose(row, params, seed=seed) for seed in range(100)]
        assert max(chosen) > 2500, "the less likely half of a flat row is never drawn"

    # Adjustments

    def test_a_bias_forces_and_forbids(self) -> None:
        """It is added to the logit."""
        self.needs("logit_bias")
        assert self.choose(ROW, SamplingParams(logit_bias={5: 100.0})) == 5
        assert self.choose(ROW, SamplingParams(logit_bias={0: -100.0})) == 1
        assert self.choose(ROW, SamplingParams(logit_bias={1: 0.9})) == 0
        assert self.choose(ROW, SamplingParams(logit_bias={1: 1.1})) == 1
        assert self.choose(ROW, SamplingParams(logit_bias={0: -1.1, 2: 0.4})) == 1

    def test_a_sequence_bias_needs_what_comes_before(self) -> None:
        """It is added to the last token if the others are the newest ones, in the prompt, too."""
        self.needs("sequence_bias")
        params = SamplingParams(sequence_bias=(((4, 5), 100.0), ((2, 4, 1), 100.0)))
        assert self.choose(ROW, params) == 0
        assert self.choose(ROW, params, prompt=(4,)) == 5
        assert self.choose(ROW, params, prompt=(FRESH,), output_ids=[4]) == 5
        assert self.choose(ROW, params, prompt=(4,), output_ids=[FRESH]) == 0
        assert self.choose([2.0, 1.0, 0.5, 0.0, -1.0, -300.0], params, prompt=(2, 4)) == 1
        assert self.choose(ROW, SamplingParams(sequence_bias=(((1,), 1.1),))) == 1
        assert self.choose(ROW, SamplingParams(sequence_bias=(((1,), 0.9),))) == 0
        both = SamplingParams(sequence_bias=(((4, 1), 0.6), ((2, 4, 1), 0.6)))
        assert self.choose(ROW, both, prompt=(FRESH, 4)) == 0
        assert self.choose(ROW, both, prompt=(2, 4)) == 1, "both biases of a token are added"

    def test_a_sequence_bias_comes_before_penalties(self) -> None:
        """A penalty of 2 makes 1 of a logit and a bias of 1, not 1.5."""
        self.needs("sequence_bias", "repetition_penalty")
        params = SamplingParams(sequence_bias=(((0,), 1.0),), repetition_penalty=2.0)
        assert self.choose([1.0, 1.25, -9.0, -9.0], params, prompt=(0, FRESH)) == 1

    def test_a_bias_comes_before_penalties(self) -> None:
        """A penalty of 2 makes 1 of a logit and a bias of 1, not 1.5."""
        self.needs("logit_bias", "repetition_penalty")
        params = SamplingParams(logit_bias={0: 1.0}, repetition_penalty=2.0)
        assert self.choose([1.0, 1.25, -9.0, -9.0], params, prompt=(0, FRESH)) == 1
        # The sign that counts is that of the sum.
        assert self.choose([-0.5, 0.5, -9.0, -9.0], params, prompt=(0, FRESH)) == 1
        params = SamplingParams(logit_bias={0: -1.0}, repetition_penalty=2.0)
        assert self.choose([0.5, -0.75, -9.0, -9.0], params, prompt=(0, FRESH)) == 1

    def test_bad_words_are_not_completed(self) -> None:
        """The last token is banned if the others are the newest ones; a part alone never is."""
        self.needs("bad_words_ids")
        params = SamplingParams(bad_words_ids=((4, 0), (5, 2, 1)), logit_bias={0: 50.0})
        assert self.choose(ROW, params) == 0
        assert self.choose(ROW, params, prompt=(4,)) == 1
        assert self.choose(ROW, params, output_ids=[4]) == 1
        row = [-90.0, 1.0, 0.5, 0.0, -1.0, -3.0]
        assert self.choose(row, SamplingParams(bad_words_ids=((5, 2, 1),)), prompt=(5, 2)) == 2
        assert self.choose(row, SamplingParams(bad_words_ids=((5, 2, 1),)), prompt=(4, 2)) == 1
        params = SamplingParams(bad_words_ids=((0,), (1,)))
        assert self.choose(ROW, params) == 2
        assert self.choose(ROW, params, eos_ids=frozenset({0})) == 0

    def test_no_run_of_tokens_comes_again(self) -> None:
        """Prompt and answer are one text; an n-gram of one token is the token."""
        self.needs("no_repeat_ngram_size")
        two, three = (SamplingParams(no_repeat_ngram_size=size) for size in (2, 3))
        tokens = [4, 0, 5, 4]
        assert self.choose(ROW, two, prompt=tokens) == 1
        assert self.choose(ROW, two, prompt=tokens[:2], output_ids=tokens[2:]) == 1
        assert self.choose(ROW, two, prompt=tokens[:3]) == 0
        assert self.choose(ROW, three, prompt=tokens) == 0
        assert self.choose(ROW, three, prompt=[5, 4, 0, 2], output_ids=[5, 4]) == 1
        one = SamplingParams(no_repeat_ngram_size=1)
        assert self.choose(ROW, one, prompt=[0, 4], output_ids=[1]) == 2

    def test_suppressed_tokens_are_never_chosen(self) -> None:
        """At no position, with any bias."""
        self.needs("suppress_tokens")
        params = SamplingParams(suppress_tokens=(0, 2), logit_bias={0: 100.0})
        assert self.choose(ROW, params) == 1
        assert self.choose(ROW, params, output_ids=[4]) == 1

    def test_tokens_suppressed_at_the_start_may_come_later(self) -> None:
        """They are banned as the first token alone."""
        self.needs("begin_suppress_tokens")
        params = SamplingParams(begin_suppress_tokens=(0,), logit_bias={0: 100.0})
        assert self.choose(ROW, params) == 1
        assert self.choose(ROW, params, output_ids=[4]) == 0

    def test_banned_tokens_are_never_chosen(self) -> None:
        """With any logit and any bias."""
        row = [390.0, 380.0, 1.0, 0.0]
        for params in (
            SamplingParams(),
            SamplingParams(temperature=2.0),
            SamplingParams(temperature=2.0, top_k=1),
            SamplingParams(temperature=2.0, top_p=0.01),
            SamplingParams(temperature=1.0, min_p=1.0),
            SamplingParams(logit_bias={0: 100.0, 1: 100.0}),
        ):
            assert self.choose(row, params, banned_ids=(0, 1)) not in {0, 1}

    def test_the_end_waits_for_the_minimum(self) -> None:
        """With ``min_tokens`` of 2, neither the first nor the second token ends the answer.

        No bias changes that, and it holds for each of several end tokens.
        """
        self.needs("min_tokens")
        for params, ends, instead in (
            (SamplingParams(min_tokens=2), {0}, 1),
            (SamplingParams(min_tokens=2, logit_bias={0: 100.0}), {0}, 1),
            (SamplingParams(min_tokens=2), {0, 1}, 2),
        ):
            chosen = [
                self.choose(ROW, params, eos_ids=frozenset(ends), output_ids=[4, 5][:length])
                for length in range(3)
            ]
            assert chosen == [instead, instead, 0]

    def test_a_presence_penalty_counts_once_and_only_in_the_answer(self) -> None:
        """Prompt tokens have no penalty, and repeated ones no greater one."""
        self.needs("presence_penalty")
        params, row = SamplingParams(presence_penalty=0.5), [1.0, 0.75, 0.0, -5.0, -5.0, -5.0]
        assert self.choose(row, params, prompt=(0, FRESH)) == 0
        assert self.choose(row, params, output_ids=[0, 4]) == 1
        often = [0, 5, 0, 2, 0, 4]
        assert self.choose([1.0, 0.25, -9.0, -9.0, -9.0, -9.0], params, output_ids=often) == 0
        assert self.choose([1.0, 0.75, -9.0, -9.0, -9.0, -9.0], params, output_ids=often) == 1

    def test_a_frequency_penalty_counts_every_time(self) -> None:
        """One occurrence does not suffice here, two do."""
        self.needs("frequency_penalty")
        params, row = SamplingParams(frequency_penalty=0.5), [1.0, 0.25, -9.0, -9.0, -9.0, -9.0]
        assert self.choose(row, params, prompt=(0, 2, 0, 5, 0, FRESH)) == 0
        assert self.choose(row, params, output_ids=[0, 4]) == 0
        assert self.choose(row, params, output_ids=[0, 5, 0, 4]) == 1

    def test_a_repetition_penalty_weakens_prompt_and_answer(self) -> None:
        """It divides positive logits and multiplies negative ones, once for each token."""
        self.needs("repetition_penalty")
        params, rest = SamplingParams(repetition_penalty=2.0), [-90.0] * 4
        assert self.choose([1.0, 0.75, *rest], params, prompt=(0, FRESH)) == 1
        assert self.choose([-1.0, -1.5, *rest], params, prompt=(2,), output_ids=[0, 4]) == 1
        assert self.choose([-1.0, -2.5, *rest], params, prompt=(2,), output_ids=[0, 4]) == 0
        assert self.choose([1.0, 0.75, *rest], params, prompt=(0, 1, FRESH)) == 0
        often = (0, 5, 0, 4, 0, FRESH)
        assert self.choose([1.0, 0.4, *rest], params, prompt=often) == 0

    def test_penalties_add_up_and_turn_round(self) -> None:
        """Penalties are summed, and negative ones favour repetition."""
        self.needs("presence_penalty", "frequency_penalty", "logit_bias")
        params = SamplingParams(
            presence_penalty=-0.5, frequency_penalty=-0.25, logit_bias={1: 0.25}
        )
        rest = [-90.0] * 4
        answer = [1, 5, 1, 4]  # 0.5 and twice 0.25 and 0.25 are 1.25 for token 1
        assert self.choose([1.0, -0.2, *rest], params, output_ids=answer) == 1
        assert self.choose([1.0, -0.3, *rest], params, output_ids=answer) == 0

    def test_penalties_cover_the_whole_sequence(self) -> None:
        """At any distance and frequency."""
        self.needs("repetition_penalty", "frequency_penalty")
        chance, rest = np.random.default_rng(0), [-90.0] * 4
        long = chance.integers(3, 6, 300).tolist()
        params = SamplingParams(repetition_penalty=2.0)
        assert self.choose([1.0, 0.75, *rest], params, prompt=(0, *long)) == 1
        assert self.choose([1.0, 0.75, *rest], params, output_ids=[0, *long]) == 1
        params = SamplingParams(frequency_penalty=0.01)  # 3 for 300 times, 0.44 for 44
        often = chance.permutation([0, 4] * 300).tolist()
        assert self.choose([2.0, 0.0, *rest], params, output_ids=often) == 1

    def test_penalties_cover_the_requested_window(self) -> None:
        """Within the window, prompt and answer tokens count alike."""
        self.needs("repeat_last_n", "repetition_penalty", "frequency_penalty")
        row = [1.0, 0.75, -90.0, -90.0, -90.0, -90.0]
        for params, without_window in (
            (SamplingParams(repetition_penalty=2.0), 1),
            (SamplingParams(frequency_penalty=0.5), 0),
        ):
            own = [params.replaced({"repeat_last_n": number}) for number in (-1, 0, 1, 2, 9)]
            chosen = [self.choose(row, each, prompt=(5, 0), output_ids=[4]) for each in own]
            assert chosen == [without_window, 0, 0, 1, 1]
            assert self.choose(row, own[3], output_ids=[0, 5, 4]) == 0

    def test_dry_weakens_what_would_go_on_with_a_run_that_came_before(self) -> None:
        """The penalty grows with the run; runs end at breakers, which have none."""
        self.needs("dry_multiplier")
        self.needs_exactness()
        params, rest = SamplingParams(dry_multiplier=1.0, dry_base=2.0), [-90.0] * 4
        run = (4, 5, 0, 2, 4, 5)  # 0 would go on with a run of two, which costs 1
        assert self.choose([1.0, 0.5, *rest], params, prompt=run) == 1
        assert self.choose([1.0, 0.5, *rest], params, prompt=run[:4], output_ids=[4, 5]) == 1
        assert self.choose([1.0, -0.5, *rest], params, prompt=run) == 0
        assert self.choose([1.0, -0.5, *rest], params, prompt=(3, *run[:4], 3, 4, 5)) == 1
        assert self.choose([1.0, 0.5, *rest], params, prompt=run[1:]) == 0
        assert self.choose([1.0, 0.5, *rest], params, prompt=run, dry_breakers={5: ((),)}) == 0
        assert self.choose([1.0, 0.5, *rest], params, prompt=run, dry_breakers={0: ((),)}) == 0
        assert self.choose([1.0, 0.5, *rest], params, prompt=run, dry_breakers={4: ((5,),)}) == 0
        assert self.choose([1.0, 0.5, *rest], params, prompt=run, dry_breakers={4: ((3,),)}) == 1
        shorter = params.replaced({"dry_penalty_last_n": 4})
        assert self.choose([1.0, 0.5, *rest], shorter, prompt=run) == 0
        longer = params.replaced({"dry_allowed_length": 3})
        assert self.choose([1.0, 0.5, *rest], longer, prompt=run) == 0

    def test_tokens_of_a_prompt_may_have_no_logit(self) -> None:
        """Some models read tokens that have no logit, such as image placeholders."""
        self.needs("repetition_penalty")
        params = SamplingParams(repetition_penalty=1.5)
        for prompt, chosen in (((0, 9, 4), 1), ((9, 4), 0)):
            assert self.choose([3.0, 2.9, -1.0, -1.1], params, prompt=prompt) == chosen

    def _keeps(
        self, row: list[float], params: SamplingParams, kept: set[int], num_draws: int = NUM_DRAWS
    ) -> None:
        """Fail if another token is drawn, or one of these never."""
        drawn = set(self.draw(row, params, num_draws))
        assert drawn <= kept, f"{params} keeps {sorted(drawn - kept)} too"
        assert drawn == kept or not self.is_exact, f"{params} drops {sorted(kept - drawn)}"
