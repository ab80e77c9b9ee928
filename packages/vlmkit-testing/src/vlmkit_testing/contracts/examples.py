"""How contracts generate examples: the same ones in every run, however long they take."""

from hypothesis import HealthCheck, settings

examples = settings(
    max_examples=100,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)
