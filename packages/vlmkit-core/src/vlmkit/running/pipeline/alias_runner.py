"""A runner under a further name that sets request fields of plugins."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vlmkit.errors import RequestError
from vlmkit.interfaces.runner import Admit, AnswerStream, Runner
from vlmkit.running.pipeline.forwarded_runner import ForwardedRunner
from vlmkit.types.prompt_tokens import PromptTokens
from vlmkit.types.request import Request


class AliasRunner(ForwardedRunner):
    """Adds request fields to each request, and forwards the rest to the runner that it wraps.

    Args:
        runner: answers the requests.
        alias: the name that sets the fields, for errors.
        fields: the values as JSON values, by field.
    """

    def __init__(self, runner: Runner, alias: str, fields: Mapping[str, Any]) -> None:
        super().__init__(runner)
        self._alias = alias
        self._fields = fields

    def submit(self, request: Request, admit: Admit | None = None) -> AnswerStream:
        """Start a request with the fields of the alias.

        Args:
            request: the request.
            admit: see :meth:`vlmkit.interfaces.runner.Runner.submit`.

        Raises:
            RequestError: the request sets one of them to another value, or as the runner's.
            EngineError: as the runner's.
        """
        return self._runner.submit(self._with_fields(request), admit)

    async def asubmit(self, request: Request, admit: Admit | None = None) -> AnswerStream:
        """Start a request with the fields of the alias, without blocking the event loop.

        Args:
            request: the request.
            admit: see :meth:`vlmkit.interfaces.runner.Runner.submit`.

        Raises:
            RequestError: the request sets one of them to another value, or as the runner's.
            EngineError: as the runner's.
        """
        return await self._runner.asubmit(self._with_fields(request), admit)

    async def atokenize(self, request: Request) -> PromptTokens:
        """Return the tokens of a request's prompt.

        Raises:
            RequestError: the request sets a field of the alias to another value, or as the
                runner's.
            EngineError: as the runner's.
        """
        return await self._runner.atokenize(self._with_fields(request))

    def _with_fields(self, request: Request) -> Request:
        for name, value in self._fields.items():
            if name in request.fields and request.fields[name] != value:
                raise RequestError(
                    f"{name} is set by the model name {self._alias!r}",
                    hint=f"leave {name} out, or request the model by another of its names",
                    param=name,
                )
        return replace(request, fields={**request.fields, **self._fields})
