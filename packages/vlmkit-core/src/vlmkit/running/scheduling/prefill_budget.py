"""How many prompt tokens fit into a step beside running answers, learned from earlier steps.

Pure: durations are passed in, and no clock is read. Two typical figures are kept: the duration of
a step that only decodes, and the time per prompt token of a step that prefills. The second figure
includes the fixed cost of a step, so it falls as chunks grow. Each step corrects it for the next
one, and chunks settle at the size whose step takes the budget.
"""

from vlmkit.settings.scheduler import SchedulerSettings

MIN_CHUNK_TOKENS = 16  # however slow the engine: a shorter chunk takes as long
MAX_CORRECTION = 4.0  # by one step: the first step and a hiccup are not typical


class PrefillBudget:
    """The time that a step may take while answers run, and the time that steps take.

    Args:
        settings: the time budget of a step.
    """

    def __init__(self, settings: SchedulerSettings) -> None:
        self._budget_s = settings.step_budget_ms / 1000
        self._decode_step_s: float | None = None
        self._token_s: float | None = None

    @property
    def max_s(self) -> float:
        """How long answers may wait for a step that prefills, fixed cost included.

        It is the budget and two steps that only decode. Were it the budget alone, and such steps
        took most of it, the rest would be all overhead. It is less than three budgets, or than
        three decode steps if those take longer.
        """
        return self._budget_s + 2 * (self._decode_step_s or 0.0)

    def record(self, num_prompt_tokens: int, duration_s: float) -> None:
        """Learn from the duration of a step.

        A short chunk, such as a prompt's last, seems slow because of the fixed cost of a step. It
        counts only where it was faster than the typical token.

        Args:
            num_prompt_tokens: prompt tokens in the step; 0 if it only decoded.
            duration_s: how long it took.
        """
        if not num_prompt_tokens:
            self._decode_step_s = _corrected(self._decode_step_s, duration_s)
            return
        token_s = duration_s / num_prompt_tokens
        is_long = num_prompt_tokens >= MIN_CHUNK_TOKENS and duration_s > self.max_s / 2
        if self._token_s is None or is_long or token_s < self._token_s:
            self._token_s = _corrected(self._token_s, token_s)

    def num_prompt_tokens(self, waited_s: float = 0.0) -> int:
        """Return how many prompt tokens fit into the next step.

        It is 0 where two thirds of the time are over: a short chunk pays the fixed cost of a step
        as a long one does. It is also 0 before any prefill was measured.

        Args:
            waited_s: how long the answers have waited for prompts already.
        """
        left_s = self.max_s - waited_s
        if self._token_s is None or left_s < self.max_s / 3:
            return 0
        return int(left_s / max(self._token_s, 1e-9))


def _corrected(typical: float | None, measured: float) -> float:
    """Move a typical figure half of the way to a measured one, by ratio."""
    if not typical:
        return measured
    ratio = measured / typical
    return float(typical * min(max(ratio, 1 / MAX_CORRECTION), MAX_CORRECTION) ** 0.5)
