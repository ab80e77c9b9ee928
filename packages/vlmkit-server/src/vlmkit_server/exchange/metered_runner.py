"""A runner that meters one call: it applies rate limits and records the call's requests."""

from vlmkit.interfaces.runner import Admit, AnswerStream, Runner
from vlmkit.running.pipeline.forwarded_runner import ForwardedRunner
from vlmkit.types.request import Request
from vlmkit_server.exchange.output_limit import OutputLimit
from vlmkit_server.exchange.response_buffer import ResponseBuffer
from vlmkit_server.exchange.unenforced_schemas import UnenforcedSchemas
from vlmkit_server.logs.request_record import RequestRecord
from vlmkit_server.rate_limits.usage_charge import UsageCharge


class MeteredRunner(ForwardedRunner):
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
        super().__init__(runner)
        self._output_limit = output_limit
        self._unenforced = unenforced
        self._response_buffer = response_buffer
        self._charge = charge
        self._record = record

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
