"""A connection that breaks: forwards bytes between two ends, and cuts or stalls on demand."""

import socket
import threading
from contextlib import suppress


class BreakingProxy:
    """Listens on a port and forwards to another one.

    Attributes:
        limits: how many bytes may pass to the server and back; None for any number.
        is_cutting: whether connections end there; otherwise they stall.
        num_passed: how many bytes have passed each way since the limits were set.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def set(self, to_server=None, to_client=None, *, is_cutting=True) -> None:
        """Let so many further bytes pass in each direction, of all connections together."""
        with self._lock:
            self.limits = {"to_server": to_server, "to_client": to_client}
            self.num_passed = {"to_server": 0, "to_client": 0}
            self.is_cutting = is_cutting

    def heal(self) -> None:
        """End the connections that stall, and let everything pass."""
        self.set()
        self._end_all()

    def close(self) -> None:
        self._server.close()
        self._end_all()

    def _end_all(self):
        with self._lock:
            ended, self._sockets = self._sockets, []
        for each in ended:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                try:
                    server = socket.create_connection(self._target, timeout=60)
                    server.settimeout(None)
                except OSError:
                    client.close()
                    continue
                with self._lock:
                    self._sockets += [client, server]
                for ends in ((client, server, "to_server"), (server, client, "to_client")):
                    threading.Thread(target=self._forward, args=ends, daemon=True).start()

    def _forward(self, source, sink, direction):
        with suppress(OSError):
            while content := source.recv(65_536):
                with self._lock:
                    limit = self.limits[direction]
                    left = len(content) if limit is None else limit - self.num_passed[direction]
                    content, rest = content[: max(0, left)], content[max(0, left) :]
                    self.num_passed[direction] += len(content)
                    is_cutting = self.is_cutting
                sink.sendall(content)
                if rest:
                    if not is_cutting:
                        return  # and the connection stays open
                    break
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
