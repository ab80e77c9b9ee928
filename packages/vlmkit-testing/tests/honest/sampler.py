"""Correct samplers that differ from ours and state the parameters that they ignore."""

import hashlib
from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Any

import array_api_compat
import numpy as np
from msgspec import structs

import vlmkit
from vlmkit.interfaces.sampler import FOLLOWED, Pick, Row
from vlmkit.interfaces.sequence import Sequence
from vlmkit.kit.per_sequence import PerSequence
from vlmkit.types.sampling import SamplingParams

Numbers = np.ndarray[Any, Any]


class Plain:
    """Samples row by row as the parameters are documented, with a generator for each position."""

    ignores = frozenset({"xtc_probability", "dry_multiplier"})

    def prepare(self, rows: Seq[Row]) -> Pick:
        def pick(logits: Any) -> Any:
            chosen = [self.chosen(row, own) for row, own in zip(rows, logits, strict=True)]
            return np.array(chosen, np.int64)

        return pick

    def chosen(self, row: Row, own: Numbers) -> int:
        with np.errstate(all="ignore"):
            logits = self.adjusted(row, own.astype(np.float64))
        temperature = row.sequence.params.temperature
        if not (logits > -np.inf).any():
            return 0
        if temperature < 1e-5:
            return int(logits.argmax())
        return self.drawn(row, logits, logits / temperature)

    def drawn(self, row: Row, logits: Numbers, scaled: Numbers) -> int:
        kept = np.where(self.kept(row.sequence.params, scaled), scaled, -np.inf)
        return int((kept + self.noise(row, len(logits))).argmax())

    def noise(self, row: Row, vocab_size: int) -> Numbers:
        seed = row.sequence.seed % 2**64
        return np.random.default_rng([seed, row.num_output]).gumbel(size=vocab_size)

    def adjusted(self, row: Row, logits: Numbers) -> Numbers:
        sequence, params = row.sequence, row.sequence.params
        answer = [*sequence.output_ids, *row.ahead]
        tokens = [*sequence.prompt.token_ids, *answer]
        for token_id, bias in params.logit_bias.items():
            logits[token_id] += bias
        for ids, bias in params.sequence_bias:
            if self.ends(tokens, ids[:-1]):
                self.add(logits, ids[-1], bias)
        for token_id in self.repeated(row):
            self.weaken(logits, token_id, params.repetition_penalty)
        counted = answer if params.repeat_last_n < 0 else self.newest(row)
        for token_id, num in Counter(t for t in counted if t < len(logits)).items():
            logits[token_id] -= params.presence_penalty + num * params.frequency_penalty
        waiting = sequence.eos_ids if row.num_output < params.min_tokens else ()
        logits[[*sequence.banned_ids, *waiting]] = -np.inf
        for token_id in self.forbidden(row, tokens):
            self.add(logits, token_id, -np.inf)
        return logits

    def forbidden(self, row: Row, tokens: list[int]) -> set[int]:
        params, sequence = row.sequence.params, row.sequence
        words = [ids for ids in params.bad_words_ids if ids not in {(i,) for i in sequence.eos_ids}]
        found = {ids[-1] for ids in words if self.ends(tokens, ids[:-1])}
        found.update(params.suppress_tokens)
        if row.num_output == 0:
            found.update(params.begin_suppress_tokens)
        if size := params.no_repeat_ngram_size:
            runs = [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
            found.update(run[-1] for run in runs if self.ends(tokens, run[:-1]))
        return found

    def ends(self, tokens: list[int], ids: Seq[int]) -> bool:
        return not ids or tokens[-len(ids) :] == list(ids)

    def add(self, logits: Numbers, token_id: int, bias: float) -> None:
        if token_id < len(logits):
            logits[token_id] += bias

    def repeated(self, row: Row) -> set[int]:
        sequence = row.sequence
        held = set(self.newest(row))
        return held if sequence.params.repetition_penalty != 1.0 else set()

    def newest(self, row: Row) -> list[int]:
        """Return the tokens that penalties cover."""
        tokens = [*row.sequence.prompt.token_ids, *row.sequence.output_ids, *row.ahead]
        last_n = row.sequence.params.repeat_last_n
        return tokens if last_n < 0 else tokens[len(tokens) - min(last_n, len(tokens)) :]

    def weaken(self, logits: Numbers, token_id: int, penalty: float) -> None:
        if token_id < len(logits):
            logits[token_id] *= 1 / penalty if logits[token_id] > 0 else penalty

    def kept(self, params: SamplingParams, scaled: Numbers) -> Numbers:
        """Return the tokens that the filters keep."""
        ordered = np.sort(scaled)[::-1]
        least = ordered[0] + np.log(params.min_p) if params.min_p else -np.inf
        if params.top_k:
            least = max(least, ordered[min(params.top_k, len(ordered)) - 1])
        if params.top_p < 1.0:
            likeliest = ordered[: params.top_k or len(ordered)]
            least = max(least, ordered[self.num_of_mass(params.top_p, likeliest)])
        return self.likely(params, scaled, scaled >= least)

    def likely(self, params: SamplingParams, scaled: Numbers, kept: Numbers) -> Numbers:
        """Return the tokens that typical-p, epsilon and eta keep."""
        if params.typical_p < 1.0:
            probs, entropy = self.probs(scaled, kept)
            with np.errstate(all="ignore"):
                gaps = np.abs(-np.log(probs) - entropy)
            order = np.argsort(gaps)
            num = int((np.cumsum(probs[order]) < params.typical_p).sum())
            kept = kept & (gaps <= gaps[order][min(num, len(order) - 1)])
        if params.epsilon_cutoff:
            probs, _ = self.probs(scaled, kept)
            kept = kept & ((probs >= params.epsilon_cutoff) | (probs == probs.max()))
        if params.eta_cutoff:
            probs, entropy = self.probs(scaled, kept)
            least = min(params.eta_cutoff, params.eta_cutoff**0.5 * np.exp(-entropy))
            kept = kept & ((probs >= least) | (probs == probs.max()))
        return kept

    def probs(self, scaled: Numbers, kept: Numbers) -> tuple[Numbers, float]:
        """Return the probabilities of the kept tokens, and their entropy."""
        probs = np.where(kept, np.exp(scaled - scaled.max()), 0.0)
        probs /= probs.sum()
        some = probs[probs > 0]
        return probs, float(-(some * np.log(some)).sum())

    def num_of_mass(self, mass: float, ordered: Numbers) -> int:
        """Return the index of the token with which the likeliest tokens reach a mass."""
        sums = np.cumsum(np.exp(ordered - ordered[0]))
        return min(int(np.searchsorted(sums, mass * sums[-1])), len(sums) - 1)


class Greedy:
    """Chooses the likeliest token that is not banned, whatever the parameters."""

    ignores = frozenset(
        {
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "typical_p",
            "epsilon_cutoff",
            "eta_cutoff",
            "repetition_penalty",
            "xtc_probability",
            "dry_multiplier",
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

    def prepare(self, rows: Seq[Row]) -> Pick:
        banned = [(i, t) for i, row in enumerate(rows) for t in row.sequence.banned_ids]

        def pick(logits: Any) -> Any:
            allowed = np.array(logits)
            for token_id in banned:
                allowed[token_id] = -np.inf
            return allowed.argmax(axis=-1)

        return pick


class Dry:
    """Lowers tokens that would repeat a run, by its length (DRY).

    It is a function of the tokens and keeps no state.
    """

    is_exact = False
    multiplier, base, allowed_length = 0.8, 1.75, 2

    def __init__(self) -> None:
        self._plain = vlmkit.ArraySampler()

    def prepare(self, rows: Seq[Row]) -> Pick:
        pick = self._plain.prepare(rows)
        penalties = [self._penalties(row) for row in rows]

        def pick_without_repeating(logits: Any) -> Any:
            if not any(penalties):
                return pick(logits)
            xp: Any = array_api_compat.array_namespace(logits)
            lowered = np.zeros(logits.shape, np.float32)
            for row, own in enumerate(penalties):
                for token_id, penalty in own.items():
                    if token_id < logits.shape[-1]:
                        lowered[row, token_id] = penalty
            return pick(logits - xp.asarray(lowered, device=array_api_compat.device(logits)))

        return pick_without_repeating

    def _penalties(self, row: Row) -> dict[int, float]:
        sequence = row.sequence
        tokens = [*sequence.prompt.token_ids, *sequence.output_ids, *row.ahead]
        longest: dict[int, int] = {}
        for position in range(1, len(tokens)):
            num_alike = 0
            while (
                num_alike < position and tokens[position - 1 - num_alike] == tokens[-1 - num_alike]
            ):
                num_alike += 1
            if num_alike >= self.allowed_length:
                longest[tokens[position]] = max(num_alike, longest.get(tokens[position], 0))
        return {
            token_id: self.multiplier * self.base ** (num_alike - self.allowed_length)
            for token_id, num_alike in longest.items()
        }


@dataclass
class Surprise:
    """The limit of surprise after the seen tokens, and their counts."""

    plain: Sequence
    limit: float
    counts: Counter[int] = field(default_factory=Counter)
    num_seen: int = 0


class Mirostat:
    """Mirostat 2 (Basu et al., 2021, arXiv:2007.14966): drops tokens that are too surprising.

    The limit follows the surprise of the answer. It is measured by counts of the tokens, not by
    earlier logits. So the limit is a function of the tokens, and the kept state only saves time.
    """

    ignores = frozenset(
        {"top_p", "top_k", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "xtc_probability"}
    )
    is_exact = False
    target_bits, rate = 5.0, 0.1

    def __init__(self) -> None:
        self._plain = vlmkit.ArraySampler()
        self._surprises = PerSequence(self._begun)

    def _begun(self, sequence: Sequence) -> Surprise:
        plain = {name: getattr(SamplingParams(), name) for name in self.ignores}
        params = structs.replace(sequence.params, **plain)
        plain = replace(sequence, params=params)  # which has the same list of tokens
        return Surprise(plain, 2 * self.target_bits)

    def prepare(self, rows: Seq[Row]) -> Pick:
        states = [self._state(row.sequence) for row in rows]
        pairs = list(zip(rows, states, strict=True))
        pick = self._plain.prepare([Row(state.plain, row.ahead) for row, state in pairs])
        limits = np.array([[self._after(state, row.ahead)] for row, state in pairs])
        temperatures = [[row.sequence.params.temperature] for row in rows]

        def pick_expected(logits: Any) -> Any:
            xp: Any = array_api_compat.array_namespace(logits)
            device = array_api_compat.device(logits)
            finite = xp.clip(logits, min=-1e4)
            shifted = finite - xp.max(finite, axis=-1, keepdims=True)
            sums = xp.sum(xp.exp(shifted), axis=-1, keepdims=True)
            bits = (xp.log(sums) - shifted) / np.log(2)
            is_cut = (bits > xp.asarray(limits, device=device)) & (shifted < 0)
            loss = 1e4 * xp.asarray(temperatures, dtype=xp.float32, device=device)
            return pick(logits - xp.where(is_cut, loss, 0.0 * loss))

        return pick_expected

    def _state(self, sequence: Sequence) -> Surprise:
        """Return the state of a sequence, updated to its newest token."""
        state = self._surprises.of(sequence)
        for token_id in sequence.output_ids[state.num_seen :]:
            state.limit = self._limit(state.limit, state.counts, token_id)
            state.counts[token_id] += 1
            state.num_seen += 1
        return state

    def _after(self, state: Surprise, ahead: Seq[int]) -> float:
        """Return the limit after drafts, which leave no trace."""
        limit, counts = state.limit, state.counts.copy() if ahead else state.counts
        for token_id in ahead:
            limit = self._limit(limit, counts, token_id)
            counts[token_id] += 1
        return limit

    def _limit(self, limit: float, counts: Counter[int], token_id: int) -> float:
        num_seen = counts.total()
        odds = (counts[token_id] + 1) / (num_seen + len(counts) + 1)
        return limit - self.rate * (-float(np.log2(odds)) - self.target_bits)


class OneNumber:
    """Draws by one uniform number for each position: the inverse of the cumulative sums.

    Follows the temperature, top-k and biases, and ignores everything else.
    """

    ignores = frozenset(FOLLOWED - {"temperature", "top_k", "logit_bias"})

    def prepare(self, rows: Seq[Row]) -> Pick:
        """Return a function that draws row by row."""

        def pick(logits: Any) -> Any:
            drawn = [self._drawn(row, own) for row, own in zip(rows, logits, strict=True)]
            return np.array(drawn, np.int32)

        return pick

    def _drawn(self, row: Row, own: Numbers) -> int:
        params, logits = row.sequence.params, own.astype(np.float64)
        for token_id, bias in params.logit_bias.items():
            logits[token_id] += bias
        logits[list(row.sequence.banned_ids)] = -np.inf
        if not np.isfinite(logits.max()):
            return 0
        if params.temperature < 1e-5 or params.top_k == 1:
            return int(logits.argmax())
        scaled = (logits - logits.max()) / params.temperature
        if 0 < params.top_k < len(scaled):
            scaled[scaled < np.sort(scaled)[-params.top_k]] = -np.inf
        sums = np.exp(scaled).cumsum()
        key = f"{row.sequence.seed} {row.num_output}".encode()
        number = int.from_bytes(hashlib.sha256(key).digest()[:8], "big") / 2**64
        return int(sums.searchsorted(number * sums[-1], side="right"))
