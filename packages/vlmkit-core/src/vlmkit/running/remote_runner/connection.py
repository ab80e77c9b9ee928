"""What a runner needs of another process: a connection to it, and how one is made.

It states nothing of the transport, which may be a pair of pipes or a network.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from vlmkit.errors import EngineError
from vlmkit.running.remote_runner.messages import Started


class Connection(Protocol):
    """A connection to a process that answers requests."""

    def send(self, message: Any) -> None:
        """Send a message without waiting; it is lost if the connection has ended.

        Messages of one thread about one request arrive in their order. May be called while the
        garbage collector runs, also within another call.

        Raises:
            NotSerializable: it holds a value that cannot be sent, or is too large.
        """
        ...

    def run(
        self,
        on_message: Callable[[Any], None],
        before_wait: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        """Deliver messages in threads of the connection, one at a time, until it ends.

        Returns at once, and calls none of these in the thread of its caller, which holds a lock.

        Args:
            on_message: gets each message.
            before_wait: called after the messages that have arrived, before a thread waits.
            on_end: called once, when the connection has ended.
        """
        ...

    def close(self, timeout_s: float = 0.0) -> None:
        """End the connection, after at most so many seconds in which the process may end it."""
        ...

    @property
    def reason(self) -> str:
        """Why the connection ended."""
        ...


class Peer(Protocol):
    """The process that answers the requests of a runner.

    Attributes:
        who: the name of the runner in errors.
        is_owned: whether the process serves this runner alone, and ends with it.
    """

    who: str
    is_owned: bool

    def connect(self, on_stage: Callable[[str], None]) -> tuple[Connection, Started]:
        """Connect to the process, and return the facts of its runner.

        Args:
            on_stage: called with the name of each stage of building the model when it begins.

        Raises:
            VlmkitError: the process cannot build the model, is another one, or is not there.
            OSError: it cannot be started.
        """
        ...

    def pauses(self, connected_s: float) -> Iterator[float]:
        """Yield the pauses before each attempt to connect again; the runner fails after the last.

        Args:
            connected_s: time in seconds for which the last connection lasted.
        """
        ...

    def lost(self, reason: str) -> EngineError:
        """Return the error of a request whose connection ended."""
        ...

    def absent(self) -> EngineError:
        """Return the error of a request while there is no connection."""
        ...

    def given_up(self, reason: str) -> str:
        """Return why the runner failed for good, after the last attempt."""
        ...
