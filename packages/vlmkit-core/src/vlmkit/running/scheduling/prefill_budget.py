"""How many tokens of prompts fit into a step beside running answers, learned from steps that ran.

Pure: durations come in, and no clock is read. Two figures are kept, both of typical steps: what a
step of answers alone takes, and what a step with prompts takes for each token of them. The second
one holds the cost of the step itself, so it falls as chunks grow; corrected by each step for the
next, chunks settle where a step takes what it may.
"""

from vlmkit.settings.scheduler import SchedulerSettings

LEAST_TOKENS = 16  # of a chunk, however slow the engine: a shorter one takes as long
MOST_CHANGE = 4.0  # that one step is believed: the first one, or a hiccup, is no rule


class PrefillBudget:
    """What a step may take while answers run, and what it takes.

    Args:
        settings: the budget of a step.
    """

    def __init__(self, settings: SchedulerSettings) -> None:
        self._budget_s = settings.step_budget_ms / 1000
        self._answers_s: float | None = None
        self._token_s: float | None = None

    @property
    def most_s(self) -> float:
        """How long answers may wait for prompts, with what such a step costs of itself.

        Two of the answers' own steps come on top of the budget: where those take most of it, what
        is left for prompts would be all overhead. It is less than three budgets, or than three
        steps of answers if those take longer.
        """
        return self._budget_s + 2 * (self._answers_s or 0.0)

    def note(self, num_prompt_tokens: int, duration_s: float) -> None:
        """Learn from a step with so many tokens of prompts; 0 of answers alone.

        A short chunk, such as a prompt's last, seems slow, since a step costs something of itself:
        it tells of longer ones only where it was faster than those were thought to be.
        """
        if not num_prompt_tokens:
            self._answers_s = _corrected(self._answers_s, duration_s)
            return
        token_s = duration_s / num_prompt_tokens
        is_long = num_prompt_tokens >= LEAST_TOKENS and duration_s > self.most_s / 2
        if self._token_s is None or is_long or token_s < self._token_s:
            self._token_s = _corrected(self._token_s, token_s)

    def num_prompt_tokens(self, waited_s: float = 0.0) -> int:
        """Return how many tokens of prompts fit when answers have waited for so long already.

        None where two thirds of the time are over: a short chunk costs a step as a long one does.
        """
        left_s = self.most_s - waited_s
        if self._token_s is None or left_s < self.most_s / 3:
            return 0
        return int(left_s / max(self._token_s, 1e-9))


def _corrected(typical: float | None, found: float) -> float:
    """Move a typical figure half of the way to a new one, by ratio."""
    if not typical:
        return found
    ratio = found / typical
    return float(typical * min(max(ratio, 1 / MOST_CHANGE), MOST_CHANGE) ** 0.5)
