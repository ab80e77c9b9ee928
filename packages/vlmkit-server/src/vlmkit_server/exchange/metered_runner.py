"""The runner that a call is given: it counts and reports what the call asks."""

from vlmkit.interfaces.runner import AnswerStream, Runner
from vlmkit.types.request import Request
from vlmkit_server.exchange.output_limit import OutputLimit
from vlmkit_server.exchange.response_buffer import ResponseBuffer
from vlmkit_server.exchange.unenforced_schemas import UnenforcedSchemas
from vlmkit_server.logs.request_record import RequestRecord
from vlmkit_server.rate_limits.usage_charge import UsageCharge


class MeteredRunner:
    """A runner whose requests are charged to a call, and noted; in all else it is the runner.

    Args:
        runner: answers.
        clamped: reports clamped lengths of answers.
        unconstrained: reports what answers are not held to.
        charge: of the call; None where there are no limits.
        noted: gets the answers; None where nobody writes lines of requests.
        whole: claims what answers hold in memory; None where they are streamed.
    """

    def __init__(
        self,
        runner: Runner,
        clamped: OutputLimit,
        unconstrained: UnenforcedSchemas,
        charge: UsageCharge | None,
        noted: RequestRecord | None,
        whole: ResponseBuffer | None = None,
    ) -> None:
        self._runner = runner
        self._clamped = clamped
        self._unconstrained = unconstrained
        self._whole = whole
        self._charge = charge
        self._noted = noted
        self.facts = runner.facts
        self.submit = runner.submit
        self.atokenize = runner.atokenize
        self.detokenize = runner.detokenize
        self.token_bytes = runner.token_bytes
        self.on_failure = runner.on_failure
        self.stats = runner.stats
        self.drain = runner.drain
        self.close = runner.close

    async def asubmit(self, request: Request) -> AnswerStream:
        """Start a request as soon as the limits of who asks are known to allow it."""
        request = self._unconstrained.reported(self._clamped.reported(request))
        if self._whole is not None:
            request = self._whole.counted(request)
        if self._charge is not None:
            stream = await self._charge.asubmit(self._runner, request)
        else:
            stream = await self._runner.asubmit(request)
        if self._noted is not None:
            self._noted.answers.append(stream)
        return stream

    @property
    def is_ready(self) -> bool:
        """Whether requests can be answered."""
        return self._runner.is_ready

    @property
    def is_full(self) -> bool:
        """Whether a request would be refused now because too many wait."""
        return self._runner.is_full
