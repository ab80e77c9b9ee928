"""A bound on how improbable a count is, for any number of draws, so that tests are stable."""

import math

LEAST_LOG_CHANCE = -32.0  # 1e-14: an honest component meets it never, however it draws


def log_chance(num_hits: int, num_draws: int, chance: float) -> float:
    """Return a bound on the log-probability of a count at least this far to its side of the mean.

    Chernoff's bound of independent draws: their number times the divergence of what was seen from
    what was expected (Hoeffding, 1963).
    """
    seen = num_hits / num_draws
    divergence = 0.0
    for part, expected in ((seen, chance), (1 - seen, 1 - chance)):
        if part > 0:
            divergence += part * math.log(part / expected) if expected > 0 else math.inf
    return -num_draws * divergence


def check_count(num_hits: int, num_draws: int, chance: float, what: str) -> None:
    """Fail if a count is one that draws of this chance never come to."""
    assert log_chance(num_hits, num_draws, chance) > LEAST_LOG_CHANCE, (
        f"{what}: {num_hits} of {num_draws} draws, expected {chance:.4g} of them"
    )
