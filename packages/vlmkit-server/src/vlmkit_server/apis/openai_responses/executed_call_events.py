"""Server-sent events of an answer whose calls the server runs: their items tell what came of them.

Several calls run side by side, so their items are begun in a row and end when all have returned.
"""

from typing import Any

from vlmkit.types.delta import Delta, ToolCallDelta
from vlmkit_server.apis.openai_chat.executed_calls import ResultDelta
from vlmkit_server.apis.openai_responses.events import ResponseEvents
from vlmkit_server.apis.openai_responses.items import CallItem, ExecutedCallItem, OutputItem, Status


class ExecutedCallEvents(ResponseEvents):
    """Encodes one answer.

    Args:
        *args: as :class:`ResponseEvents` has them, and the others.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._running: dict[
            int, tuple[int, ExecutedCallItem]
        ] = {}  # by call: its place, and itself

    def _delta(self, delta: Delta) -> bytes:
        if not isinstance(delta, ResultDelta):
            return super()._delta(delta)
        finished = self._end_item("completed")
        index, item = self._running.pop(delta.index)
        item.finish(delta.text, is_error=delta.is_error)
        kind = f"response.mcp_call.{item.status}"
        return (
            finished
            + self._event(kind, item_id=item.id, output_index=index)
            + self._item_done(index)
        )

    def _call_item(self, delta: ToolCallDelta) -> tuple[OutputItem, str]:
        item = ExecutedCallItem.started(delta.id, delta.name)
        self._running[delta.index] = len(self._output), item
        return item, "response.mcp_call_arguments.delta"

    def _begin_item(self, key: int, delta: Delta) -> bytes:
        started = super()._begin_item(key, delta)
        if isinstance(delta, ToolCallDelta):
            started += self._event("response.mcp_call.in_progress", **self._item_position())
        return started

    def _end_call(self, item: CallItem | ExecutedCallItem, arguments: str) -> bytes:
        item.arguments, item.status = arguments, "in_progress"  # until it has returned
        kind = "response.mcp_call_arguments.done"
        return self._event(kind, **self._item_position(), arguments=arguments)

    def _end_all(self, status: Status) -> bytes:
        """Return the events that end what is open, calls included of which nothing came."""
        finished = super()._end_all(status)
        for index, item in self._running.values():
            item.status = "incomplete"
            finished += self._item_done(index)
        self._running.clear()
        return finished
