"""A runner that forwards every call to another one; the base of runners that change some calls."""

from collections.abc import Sequence as Seq

from vlmkit.interfaces.runner import Admit, AnswerStream, Runner
from vlmkit.kit.runner_state import is_restarting
from vlmkit.kit.runner_tokens import adetokenize
from vlmkit.types.prompt_tokens import PromptTokens
from vlmkit.types.request import Request


class ForwardedRunner:
    """Forwards every call.

    Args:
        runner: answers the requests.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.facts = runner.facts
        self.detokenize = runner.detokenize
        self.token_bytes = runner.token_bytes
        self.on_failure = runner.on_failure
        self.stats = runner.stats
        self.drain = runner.drain
        self.close = runner.close

    def submit(self, request: Request, admit: Admit | None = None) -> AnswerStream:
        """Start a request; see :meth:`vlmkit.interfaces.runner.Runner.submit`."""
        return self._runner.submit(request, admit)

    async def asubmit(self, request: Request, admit: Admit | None = None) -> AnswerStream:
        """Start a request; see :meth:`vlmkit.interfaces.runner.Runner.asubmit`."""
        return await self._runner.asubmit(request, admit)

    async def atokenize(self, request: Request) -> PromptTokens:
        """Return the tokens of a request's prompt."""
        return await self._runner.atokenize(request)

    async def adetokenize(self, token_ids: Seq[int]) -> str:
        """Return the text of tokens without blocking the event loop."""
        return await adetokenize(self._runner, token_ids)

    @property
    def is_ready(self) -> bool:
        """Whether requests can be answered."""
        return self._runner.is_ready

    @property
    def is_restarting(self) -> bool:
        """Whether requests cannot be answered now, and will be."""
        return is_restarting(self._runner)

    @property
    def is_full(self) -> bool:
        """Whether a request would be refused now because the queue is full."""
        return self._runner.is_full
