"""The store of responses in memory: limited in number and bytes, with eviction by least recent use.

The account that holds most loses its responses first. Responses in progress are never evicted, so
no account ends the answers of another. Responses last as long as the process, and are found only
with the credentials that created them. Turns that several responses share are held and counted
once.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, KeysView, Sequence
from typing import NamedTuple

from vlmkit.errors import RequestError
from vlmkit.running.scheduling.eviction import EvictionPolicy
from vlmkit_server.apis.openai_responses.event_log import EventLog
from vlmkit_server.apis.openai_responses.items import StoredItem
from vlmkit_server.http.errors import NotStored, Overloaded
from vlmkit_server.settings.server import ResponsesSettings

ITEM_BYTES = 256  # the memory of an item besides its text
EVENT_SHARE = 8  # the event log of one answer may take 1 / 8 of the store


class Turn:
    """The input and the output of one response, and the turn before it.

    Args:
        owner: the owner of the response.
        input_items: the items that the client sent.
        previous: the turn that this one continues; its answer has ended.
        account: the account that the store counts it to.
    """

    def __init__(
        self,
        owner: bytes,
        input_items: Sequence[StoredItem],
        previous: "Turn | None",
        account: str = "",
    ) -> None:
        self.owner = owner
        self.account = account
        self.previous = previous
        self.input_items = input_items
        self.output_items: Sequence[StoredItem] = ()
        self.num_uses = 0  # by a stored response, and by the turns that continue this one
        self.num_bytes = _num_bytes(input_items)  # of this turn alone
        self._num_previous_bytes = previous.num_whole_bytes if previous else 0

    def items(self) -> list[StoredItem]:
        """Return all items from the start of the conversation to the end of this turn."""
        turns = [self]
        while (previous := turns[-1].previous) is not None:
            turns.append(previous)
        return [
            item for turn in reversed(turns) for item in (*turn.input_items, *turn.output_items)
        ]

    @property
    def num_whole_bytes(self) -> int:
        """The bytes of all items from the start of the conversation."""
        return self._num_previous_bytes + self.num_bytes


class _TurnIndex:
    """Turns that stored responses use: counts their bytes, and finds the items of their answers.

    A turn that several responses use is counted once. The store holds its lock during each call.

    Args:
        held: counts what each tenant holds.
    """

    def __init__(self, held: EvictionPolicy) -> None:
        self._held = held
        self._output_items: dict[str, tuple[Turn, StoredItem]] = {}

    @property
    def output_item_ids(self) -> KeysView[str]:
        """The ids of the items that :meth:`output_item` finds."""
        return self._output_items.keys()

    def use(self, newest: Turn) -> None:
        """Count a use of a turn, and on its first use those of the turns before it."""
        turn: Turn | None = newest
        while turn is not None:
            turn.num_uses += 1
            if turn.num_uses > 1:
                return
            self._held.add(turn.account, 0, turn.num_bytes)
            self._output_items |= _by_id(turn)
            turn = turn.previous

    def release(self, newest: Turn) -> None:
        """End a use of a turn, and on its last use those of the turns before it."""
        turn: Turn | None = newest
        while turn is not None:
            turn.num_uses -= 1
            if turn.num_uses:
                break
            self._held.add(turn.account, 0, -turn.num_bytes)
            for item in turn.output_items:
                del self._output_items[item.id]
            turn = turn.previous

    def finish(self, turn: Turn, output_items: Sequence[StoredItem]) -> None:
        """Add the answer to a turn in use."""
        num_bytes = _num_bytes(output_items)
        turn.num_bytes += num_bytes
        turn.output_items = output_items
        self._output_items |= _by_id(turn)
        self._held.add(turn.account, 0, num_bytes)

    def output_item(self, item_id: str, owner: bytes) -> StoredItem | None:
        """Return an item of an answer, or None if the owner has none of this id."""
        turn, item = self._output_items.get(item_id, (None, None))
        return item if turn is not None and turn.owner == owner else None


class StoredResponse(NamedTuple):
    """A stored response, which may be in progress.

    Attributes:
        body: the body that GET returns.
        turn: its items.
        is_over: whether it has ended.
        is_in_background: whether it runs in the background.
        stop: cancels a background response in progress, and returns its final body; None once it
            has ended.
        log: the event log of a background response.
    """

    body: bytes
    turn: Turn
    is_over: bool
    is_in_background: bool
    stop: Callable[[], bytes] | None = None
    log: EventLog | None = None


class ResponseStore:
    """Stores responses. May be used from any thread.

    Args:
        settings: the limits of the store.
    """

    def __init__(self, settings: ResponsesSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._num_event_bytes: dict[str, int] = {}  # of background responses
        self._held = EvictionPolicy(settings.max_stored, settings.max_stored_bytes)
        self._turns = _TurnIndex(self._held)

    @property
    def max_event_bytes(self) -> int:
        """The largest size of the event log of one background response."""
        return self._settings.max_stored_bytes // EVENT_SHARE

    @property
    def is_off(self) -> bool:
        """Whether the store is disabled."""
        return self._settings.max_stored == 0

    def begin(
        self,
        response_id: str,
        body: bytes,
        turn: Turn,
        stop: Callable[[], bytes] | None = None,
        log: EventLog | None = None,
    ) -> bool:
        """Store a response in progress.

        Args:
            response_id: the id of the response.
            body: the body that GET returns until it ends.
            turn: its input.
            stop: cancels a background response; also called if the response is removed.
            log: its event log.

        Returns:
            False if the response is too large to be stored.

        Raises:
            Overloaded: the other responses of its account are in progress, and no account that
                holds more has one to evict.
        """
        stored = StoredResponse(
            body, turn, is_over=False, is_in_background=stop is not None, stop=stop, log=log
        )
        if self._is_too_large(stored):
            return False
        with self._lock:
            self._responses[response_id] = stored
            self._held.add(turn.account, 1, len(body))
            self._turns.use(turn)
            if not self._make_room(turn.account):
                self._remove(response_id)
                raise Overloaded("as many of your responses as are kept are still being answered")
            return True

    def finish(self, response_id: str, body: bytes, output_items: Sequence[StoredItem]) -> None:
        """Store the end of a response, unless it was cancelled or removed before."""
        with self._lock:
            stored = self._responses.get(response_id)
            if stored is None or stored.is_over:
                return
            self._turns.finish(stored.turn, output_items)
            self._held.add(stored.turn.account, 0, len(body) - len(stored.body))
            over = self._responses[response_id] = stored._replace(
                body=body, is_over=True, stop=None
            )
            self._responses.move_to_end(response_id)
            if self._is_too_large(over):  # remove it alone, rather than all others first
                self._forget(response_id)
            self._make_room(over.turn.account)

    def grow(self, response_id: str, num_event_bytes: int) -> None:
        """Count the events of a background response, unless it was removed."""
        with self._lock:
            if (found := self._responses.get(response_id)) is None:
                return
            account, log = found.turn.account, found.log
            self._count_events(response_id, account, num_event_bytes)
            while not self._make_room(account) and log is not None and log.num_bytes:
                log.shorten()  # its own events, since responses of others must stay
                self._count_events(response_id, account, log.num_bytes)

    def abandon(self, response_id: str) -> None:
        """Remove a response that has no client any more; has no effect once it has ended."""
        with self._lock:
            found = self._responses.get(response_id)
            if found is not None and not found.is_over:
                self._forget(response_id)

    def find(self, response_id: str, owner: bytes) -> StoredResponse:
        """Return a response, and mark it as recently used.

        Raises:
            NotStored: the owner has no response of this id.
        """
        with self._lock:
            found = self._responses.get(response_id)
            if found is None or found.turn.owner != owner:
                raise NotStored("no response of this id is stored here", param="id")
            self._responses.move_to_end(response_id)
            return found

    def turn(self, response_id: str, owner: bytes) -> Turn:
        """Return the turn that a new one continues.

        Raises:
            NotStored: the owner has no response of this id.
            RequestError: the response has no answer, or not yet.
        """
        try:
            found = self.find(response_id, owner)
        except NotStored:
            raise NotStored(
                "the previous response is not stored here",
                param="previous_response_id",
                code="previous_response_not_found",
                hint="it was not stored, was deleted or forgotten; send the whole conversation",
            ) from None
        if not found.turn.output_items:
            raise RequestError("the previous response has no answer", param="previous_response_id")
        return found.turn

    def item(self, item_id: str, owner: bytes) -> StoredItem:
        """Return an item of an answer.

        Raises:
            NotStored: the owner has no item of this id.
        """
        with self._lock:
            item = self._turns.output_item(item_id, owner)
            if item is None:
                raise NotStored("no item of this id is stored here", code="item_not_found")
            return item

    def cancel(self, response_id: str, owner: bytes) -> bytes:
        """Cancel a background response, and return its body.

        Raises:
            NotStored: the owner has no response of this id.
            RequestError: the response does not run in the background.
        """
        found = self.find(response_id, owner)
        if not found.is_in_background:
            raise RequestError("only a response in the background can be cancelled", param="id")
        if found.stop is not None:
            self.finish(response_id, found.stop(), ())
        return self.find(response_id, owner).body

    def delete(self, response_id: str, owner: bytes) -> None:
        """Remove a response; the turns that continue it keep its items.

        Raises:
            NotStored: the owner has no response of this id.
        """
        self.find(response_id, owner)
        with self._lock:
            if response_id in self._responses:
                self._forget(response_id)

    def _is_too_large(self, response: StoredResponse) -> bool:
        """Return whether a response exceeds the limit of the whole store."""
        num_bytes = len(response.body) + response.turn.num_whole_bytes
        return num_bytes > self._settings.max_stored_bytes

    # The following methods must be called with the lock held.

    def _count_events(self, response_id: str, account: str, num_bytes: int) -> None:
        self._held.add(account, 0, num_bytes - self._num_event_bytes.get(response_id, 0))
        self._num_event_bytes[response_id] = num_bytes

    def _make_room(self, account: str) -> bool:
        """Evict responses until the limits hold; False if none may be evicted for this account."""
        while not self._held.fits():
            accounts = self._held.tenants_to_evict(account)
            oldest = (self._oldest_of(each) for each in accounts)
            if (response_id := next(filter(None, oldest), None)) is None:
                return False
            self._forget(response_id)
        return True

    def _oldest_of(self, account: str) -> str | None:
        """Return the least recently used response of an account that has ended."""
        stored = self._responses.items()
        return next((i for i, r in stored if r.is_over and r.turn.account == account), None)

    def _forget(self, response_id: str) -> None:
        """Remove a response, and cancel it if it runs in the background."""
        response = self._remove(response_id)
        if response.stop is not None:
            response.stop()

    def _remove(self, response_id: str) -> StoredResponse:
        response = self._responses.pop(response_id)
        num_event_bytes = self._num_event_bytes.pop(response_id, 0)
        self._held.add(response.turn.account, -1, -len(response.body) - num_event_bytes)
        self._turns.release(response.turn)
        return response


def _by_id(turn: Turn) -> dict[str, tuple[Turn, StoredItem]]:
    return {item.id: (turn, item) for item in turn.output_items}


def _num_bytes(items: Sequence[StoredItem]) -> int:
    return sum(len(item.content) + len(item.id) + ITEM_BYTES for item in items)
