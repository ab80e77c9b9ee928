"""The figures of a load test: percentiles of latencies, throughput, goodput, and errors by name.

Failed requests are counted by the name of their error, and are in no percentile.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np

from vlmkit.errors import RequestError
from vlmkit_bench.client import Outcome

PERCENTILES = (50, 90, 99)
_SLO = re.compile(r"(\w+)=(\d+(?:\.\d+)?)")


class Distribution(msgspec.Struct, frozen=True):
    """Percentiles of a latency, in seconds.

    Attributes:
        num_samples: the number of samples; of fewer than 100, p99 is between the two largest.
        p50, p90, p99: the percentiles, interpolated between samples.
        max: the largest sample.
    """

    num_samples: int
    p50: float
    p90: float
    p99: float
    max: float


class Summary(msgspec.Struct, frozen=True):
    """The figures of a load test.

    Attributes:
        duration_s: from the start to the end of the last request.
        num_requests: the number of requests, failed ones included.
        num_succeeded: the number that succeeded.
        errors: the number that failed, by the name of the error.
        latencies: percentiles by the name of the latency; one without samples is absent.
        requests_per_s: succeeded requests per second.
        prompt_tokens: tokens of their prompts, by the server's usage.
        cached_tokens: of them those that were cached, where the server says so.
        completion_tokens: tokens of their answers, by the server's usage.
        tokens_per_s: tokens of answers per second.
        events_per_token: events with text for each token; below 1 where events have several tokens.
        num_without_usage: succeeded requests without usage, whose tokens are not counted.
        num_resent: how often a request was sent again on another connection.
        slo: the largest latencies of a good request, in seconds, by name.
        num_good: succeeded requests with no latency above them; None without ``slo``.
        goodput_per_s: good requests per second.
        late_s: how late the client sent requests; large values mean that the client was too slow.
        client_cores: the processor time of the client for each second.
    """

    duration_s: float
    num_requests: int
    num_succeeded: int
    errors: dict[str, int]
    latencies: dict[str, Distribution]
    requests_per_s: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    tokens_per_s: float
    events_per_token: float | None
    num_without_usage: int
    num_resent: int = 0
    slo: dict[str, float] = {}
    num_good: int | None = None
    goodput_per_s: float | None = None
    late_s: Distribution | None = None
    client_cores: float = 0.0


def _since(name: str) -> Callable[[Outcome], list[float]]:
    def samples(outcome: Outcome) -> list[float]:
        at_s: float | None = getattr(outcome, name)
        return [] if at_s is None else [at_s - outcome.due_s]

    return samples


def _per_token(outcome: Outcome) -> list[float]:
    """Return the time for each token after the first event with text, by the server's usage."""
    num, firsts = outcome.completion_tokens or 0, (outcome.first_reasoning_s, outcome.first_text_s)
    known = [first for first in firsts if first is not None]
    return [(outcome.end_s - min(known)) / (num - 1)] if num > 1 and known else []


LATENCIES: Mapping[str, Callable[[Outcome], Sequence[float]]] = {
    "first_event": _since("first_event_s"),
    "first_reasoning": _since("first_reasoning_s"),
    "first_text": _since("first_text_s"),
    "gap": lambda outcome: outcome.gaps_s,
    "per_token": _per_token,
    "total": _since("end_s"),
}
"""The samples of each latency that a request has: from the time at which it was due; between its
events; for each of its tokens."""


def summary_of(
    outcomes: Sequence[Outcome], slo: Mapping[str, float], client_cpu_s: float
) -> Summary:
    """Return the figures of a load test.

    Args:
        outcomes: what became of each request.
        slo: the largest latencies of a good request, by name; gaps are averaged.
        client_cpu_s: the processor time of the client.
    """
    good = [outcome for outcome in outcomes if outcome.error is None]
    duration_s = max((outcome.end_s for outcome in outcomes), default=0.0)
    per_s = 1 / duration_s if duration_s else 0.0
    counted = [outcome for outcome in good if outcome.completion_tokens is not None]
    num_tokens = sum(outcome.completion_tokens or 0 for outcome in counted)
    num_events = sum(outcome.num_events for outcome in counted)
    found = {name: distribution(map(of, good)) for name, of in LATENCIES.items()}
    num_good = sum(_is_within(outcome, slo) for outcome in good) if slo else None
    return Summary(
        duration_s=duration_s,
        num_requests=len(outcomes),
        num_succeeded=len(good),
        errors=dict(Counter(o.error for o in outcomes if o.error is not None).most_common()),
        latencies={name: each for name, each in found.items() if each is not None},
        requests_per_s=len(good) * per_s,
        prompt_tokens=sum(outcome.prompt_tokens or 0 for outcome in counted),
        cached_tokens=sum(outcome.cached_tokens or 0 for outcome in counted),
        completion_tokens=num_tokens,
        tokens_per_s=num_tokens * per_s,
        events_per_token=num_events / num_tokens if num_tokens else None,
        num_without_usage=len(good) - len(counted),
        num_resent=sum(outcome.num_resent for outcome in outcomes),
        slo=dict(slo),
        num_good=num_good,
        goodput_per_s=None if num_good is None else num_good * per_s,
        late_s=distribution([outcome.sent_s - outcome.due_s] for outcome in outcomes),
        client_cores=client_cpu_s * per_s,
    )


def distribution(samples: Iterable[Sequence[float]]) -> Distribution | None:
    """Return the percentiles of all samples; None if there are none."""
    found = np.fromiter((each for some in samples for each in some), np.float64)
    if not found.size:
        return None
    return Distribution(found.size, *map(float, np.percentile(found, (*PERCENTILES, 100))))


def _is_within(outcome: Outcome, slo: Mapping[str, float]) -> bool:
    """Tell whether no latency of a request is above its limit; one that it lacks is not."""
    for name, limit_s in slo.items():
        samples = LATENCIES[name](outcome)
        if samples and sum(samples) / len(samples) > limit_s:
            return False
    return True


def parse_slo(texts: Iterable[str]) -> dict[str, float]:
    """Return the limits that texts such as ``first_text=0.5`` state, in seconds.

    Raises:
        RequestError: one of them is wrong.
    """
    found: dict[str, float] = {}
    for text in texts:
        match = _SLO.fullmatch(text)
        if match is None or match[1] not in LATENCIES:
            raise RequestError(
                f"{text!r} is no limit such as first_text=0.5",
                hint=f"names: {', '.join(LATENCIES)}",
            )
        found[match[1]] = float(match[2])
    return found
