"""The state of any runner, whichever optional parts it has."""

from vlmkit.interfaces.runner import RestartsItself, Runner


def is_restarting(runner: Runner) -> bool:
    """Return whether a runner cannot answer now, and becomes ready again by itself."""
    return not runner.is_ready and isinstance(runner, RestartsItself) and runner.is_restarting
