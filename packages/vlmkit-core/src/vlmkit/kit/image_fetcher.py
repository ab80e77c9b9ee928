"""Fetches images and files by URL, with protection against server-side request forgery.

A host name is resolved once, all its addresses must be public, and the connection uses a checked
address. Redirects are checked in the same way. Proxy variables, cookies and credentials are not
used. An error names a problem only if the client's URL alone shows it. All network problems give
the same error, so a name with a private address looks like an unreachable one.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import httpcore2
import httpx2

from vlmkit.errors import ImageError, OutOfMemory
from vlmkit.kit._public_address import Address, is_public
from vlmkit.kit.one_line import named
from vlmkit.settings.fetch import FetchSettings

log = logging.getLogger(__name__)

MAX_URL_CHARS = 8192
MAX_LOOKUPS = 256  # of host names at the same time
BEGINNING_BYTES = 2**12
REDIRECTS = frozenset({301, 302, 303, 307, 308})


class ImageFetcher:
    """Fetches image files over http(s) within limits.

    Args:
        settings: permitted hosts and limits.
        may_connect: returns whether an address is allowed.
        is_for_owner: whether errors may contain details of the network; false for clients of a
            server.
    """

    def __init__(
        self,
        settings: FetchSettings,
        *,
        may_connect: Callable[[Address], bool] = is_public,
        is_for_owner: bool = False,
    ) -> None:
        self._settings = settings
        self._is_for_owner = is_for_owner
        self._network = _CheckedNetwork(may_connect)

    async def fetch(self, url: str, is_enough: Callable[[bytes], bool] | None = None) -> bytes:
        """Return the content of a URL.

        Args:
            url: the URL.
            is_enough: returns whether the beginning of the content is enough, so that the rest is
                not fetched. It is called in a thread each time the size has doubled.

        Raises:
            ImageError: the URL is not allowed or cannot be reached, or its content is too large.
            OutOfMemory: this machine has too little free memory for it.
        """
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                return await self._fetch(url, is_enough)
        except ImageError:
            raise
        except MemoryError as error:
            raise OutOfMemory("this image") from error
        except Exception as error:  # noqa: BLE001 - any network failure
            log.info("an image was not fetched: %s", type(error).__name__)
            is_late = isinstance(error, TimeoutError)
            late = f"it took over {self._settings.timeout_s:g} s"
            raise self._failed(late if is_late else named(error)) from None

    async def _fetch(self, url: str, is_enough: Callable[[bytes], bool] | None) -> bytes:
        checked = self._checked(httpx2.URL(_plain(url)))
        self._refuse_special(checked)
        pool = httpcore2.AsyncConnectionPool(
            ssl_context=self._tls if checked.scheme == "https" else None,
            network_backend=self._network,
        )
        async with pool:
            for _ in range(self._settings.max_redirects + 1):
                async with pool.stream(
                    "GET", _target(checked), headers=_headers(checked)
                ) as answer:
                    if answer.status == 200:
                        return await self._read(answer, is_enough)
                    if answer.status not in REDIRECTS:
                        raise self._failed(f"the server answered with status {answer.status}")
                    location = dict(answer.headers).get(b"location", b"").decode("ascii")
                checked = self._redirected(checked, location)
        raise self._failed(f"over {self._settings.max_redirects} redirects")

    def _failed(self, reason: str) -> ImageError:
        """Return the error for an image that cannot be fetched; without reason for clients."""
        if not self._is_for_owner:
            return not_allowed()
        return ImageError(
            f"the image cannot be fetched: {reason}", hint="check the address, or save the image"
        )

    def _checked(self, url: httpx2.URL) -> httpx2.URL:
        """Return the URL after checking its scheme and host.

        Raises:
            ImageError: the URL is not allowed.
        """
        allowed = self._settings.allowed_hosts
        schemes = ("https", "http") if self._settings.allow_http else ("https",)
        if url.scheme not in schemes or url.userinfo or not url.host:
            raise _refused(
                f"the image's address must be a URL of {' or '.join(schemes)} with a host and "
                "without a user"
            )
        if allowed and url.host.lower() not in {host.lower() for host in allowed}:
            raise _refused("this server fetches no images from the host of the image's address")
        return url

    def _refuse_special(self, url: httpx2.URL) -> None:
        """Raise an error for a URL whose host is a literal address that is not public."""
        with contextlib.suppress(ValueError):  # the host is a name
            if not self._network.may_connect(ipaddress.ip_address(url.host)):
                raise _refused("the image's address is not a public one")

    def _redirected(self, url: httpx2.URL, location: str) -> httpx2.URL:
        """Return the checked target of a redirect; errors hide its details from clients."""
        try:
            return self._checked(url.join(_plain(location)))
        except ImageError:
            raise not_allowed() from None

    async def _read(
        self, answer: httpcore2.Response, is_enough: Callable[[bytes], bool] | None
    ) -> bytes:
        content, next_check_bytes = bytearray(), BEGINNING_BYTES
        async for part in answer.aiter_stream():
            content += part
            if len(content) > self._settings.max_bytes:
                raise ImageError(
                    f"image file is over {self._settings.max_bytes} bytes", code="image_too_large"
                )
            if is_enough is not None and len(content) >= next_check_bytes:
                if await asyncio.to_thread(is_enough, bytes(content)):
                    break
                next_check_bytes = 2 * len(content)
        return bytes(content)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()


class _CheckedNetwork(httpcore2.AsyncNetworkBackend):
    """Connects only to checked addresses; TLS still verifies the certificate of the host name."""

    def __init__(self, may_connect: Callable[[Address], bool]) -> None:
        self.may_connect = may_connect
        self._inner = httpcore2.AnyIOBackend()
        self._num_lookups = 0

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature of the base class
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002
    ) -> httpcore2.AsyncNetworkStream:
        addresses = await self._resolve(host, port)
        if not addresses or not all(map(self.may_connect, addresses)):
            raise not_allowed()
        for address in addresses[:-1]:
            try:
                return await self._inner.connect_tcp(str(address), port, timeout, local_address)
            except httpcore2.ConnectError:
                continue
        return await self._inner.connect_tcp(str(addresses[-1]), port, timeout, local_address)

    async def _resolve(self, host: str, port: int) -> list[Address]:
        """Return the addresses of a host name.

        The lookup runs in a daemon thread, because it cannot be interrupted. It can take minutes if
        a client names a host whose name server does not answer.
        """
        if self._num_lookups >= MAX_LOOKUPS:
            raise not_allowed()
        self._num_lookups += 1
        loop = asyncio.get_running_loop()
        found: asyncio.Future[list[Address]] = loop.create_future()

        def resolve() -> None:
            result: list[Address] | Exception
            try:
                entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                addresses = (ipaddress.ip_address(entry[4][0]) for entry in entries)
                result = list(dict.fromkeys(addresses))
            except (OSError, ValueError) as error:
                result = error
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(self._end_lookup, found, result)

        threading.Thread(target=resolve, name="vlmkit-resolve", daemon=True).start()
        return await found

    def _end_lookup(
        self, found: "asyncio.Future[list[Address]]", result: list[Address] | Exception
    ) -> None:
        self._num_lookups -= 1
        if not found.done():  # otherwise its request was cancelled
            _set_outcome(found, result)


def not_allowed() -> ImageError:
    """Return the common error for addresses that are private, unreachable or broken."""
    return _refused("the image's address is not allowed or cannot be reached")


def not_fetched() -> ImageError:
    """Return the error of a server that fetches no images."""
    return _refused("this server fetches no images by URL")


def _refused(message: str) -> ImageError:
    return ImageError(message, code="image_url_not_allowed", hint="send the image as a data: URL")


def _set_outcome(found: "asyncio.Future[list[Address]]", result: list[Address] | Exception) -> None:
    if isinstance(result, Exception):
        found.set_exception(result)
    else:
        found.set_result(result)


def _plain(url: str) -> str:
    """Return a URL after checking that all parsers read the same host from it."""
    is_plain = url.isascii() and url.isprintable() and not set(url) & set(" \\")
    if not is_plain or not 0 < len(url) <= MAX_URL_CHARS:
        raise _refused(
            f"the image's address must be a URL of at most {MAX_URL_CHARS} characters of ASCII "
            "without spaces and backslashes"
        )
    return url


def _target(url: httpx2.URL) -> httpcore2.URL:
    return httpcore2.URL(
        scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
    )


def _headers(url: httpx2.URL) -> list[tuple[bytes, bytes]]:
    return [(b"host", url.netloc), (b"accept", b"image/*, */*;q=0.5"), (b"connection", b"close")]
