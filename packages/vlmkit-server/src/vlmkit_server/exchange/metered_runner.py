"""A runner that meters one call: it applies rate limits and records the call's requests."""

from collections.abc import Sequence as Seq

from vlmkit.interfaces.runner import Admit, AnswerStream, Runner
from vlmkit.kit.runner_tokens import adetokenize
from vlmkit.types.request import Request
from vlmkit_server.exchange.output_limit import OutputLimit
from vlmkit_server.exchange.response_buffer import ResponseBuffer
from vlmkit_server.exchange.unenforced_schemas import UnenforcedSchemas
from vlmkit_server.logs.request_record import RequestRecord
from vlmkit_server.rate_limits.usage_charge import UsageCharge


class MeteredRunner:
    """Wraps a runner for one call, and charges and records its requests.

    Args:
        runner: runs the requests.
        output_limit: reports clamped lengths of answers.
        unenforced: reports schema keywords that are not enforced.
        charge: charges the call's usage; None where there are no rate limits.
        record: records the answers; None where requests are not logged.
        response_buffer: reserves memory for complete answers; None for streams.
    """

    def __init__(
        self,
        runner: Runner,
        output_limit: OutputLimit,
        unenforced: UnenforcedSchemas,
        charge: UsageCharge | None,
        record: RequestRecord | None,
        response_buffer: ResponseBuffer | None = None,
    ) -> None:
        self._runner = runner
        self._output_limit = output_limit
        self._unenforced = unenforced
        self._response_buffer = response_buffer
        self._charge = charge
        self._record = record
        self.facts = runner.facts
        self.submit = runner.submit
        self.atokenize = runner.atokenize
        self.detokenize = runner.detokenize
        self.token_bytes = runner.token_bytes
        self.on_failure = runner.on_failure
        self.stats = runner.stats
        self.drain = runner.drain
        self.close = runner.close

    async def asubmit(self, request: Request, admit: Admit | None = None) -> AnswerStream:
        """Start a request, if the caller's limits allow it.

        Args:
            request: the request.
            admit: decides first; see :meth:`vlmkit.interfaces.runner.Runner.submit`.
        """
        admit = self._output_limit.reported(request, admit)
        admit = self._unenforced.reported(request, admit)
        if self._response_buffer is not None:
            admit = self._response_buffer.counted(request, admit)
        if self._charge is not None:
            stream = await self._charge.asubmit(self._runner, request, admit)
        else:
            stream = await self._runner.asubmit(request, admit)
        if self._record is not None:
            self._record.answers.append(stream)
        return stream

    async def adetokenize(self, token_ids: Seq[int]) -> str:
        """Return the text of tokens without blocking the event loop."""
        return await adetokenize(self._runner, token_ids)

    @property
    def is_ready(self) -> bool:
        """Whether requests can be answered."""
        return self._runner.is_ready

    @property
    def is_full(self) -> bool:
        """Whether a request would be refused now because the queue is full."""
        return self._runner.is_full
