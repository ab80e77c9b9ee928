"""Decodes bodies with the header ``Content-Encoding``: gzip is decompressed as it arrives.

At most the largest body size is decompressed, whatever the input would expand to (RFC 9110,
section 8.4). Other encodings are refused.
"""

import zlib
from collections.abc import Iterator

from litestar.datastructures import Headers
from litestar.exceptions.http_exceptions import RequestEntityTooLarge

from vlmkit.errors import RequestError
from vlmkit_server.http.errors import EncodingRefused

PIECE_BYTES = 2**20  # decompressing so much takes a few milliseconds
_GZIP_WBITS = 31  # zlib's number for the gzip format with the largest window


class Gunzip:
    """Decompresses one body.

    Args:
        max_bytes: the largest decompressed size.
    """

    def __init__(self, max_bytes: int) -> None:
        self._inflate = zlib.decompressobj(_GZIP_WBITS)
        self._num_left = max_bytes

    def pieces(self, part: bytes) -> Iterator[bytes]:
        """Yield the decompressed content of a part, in pieces of a mebibyte at most.

        Raises:
            RequestEntityTooLarge: the decompressed body is too large.
            RequestError: the data is not gzip, or has trailing bytes.
        """
        while part:
            try:
                piece = self._inflate.decompress(part, PIECE_BYTES)
            except zlib.error:
                raise _broken() from None
            if self._inflate.unused_data:
                raise _broken()
            self._num_left -= len(piece)
            if self._num_left < 0:
                raise RequestEntityTooLarge
            yield piece
            part = self._inflate.unconsumed_tail

    def close(self) -> None:
        """Check that the body is complete.

        Raises:
            RequestError: its end is missing.
        """
        if not self._inflate.eof:
            raise _broken()


def gunzip_of(headers: Headers, max_bytes: int) -> Gunzip | None:
    """Return the decompressor of a body; None if it is not encoded.

    Args:
        headers: the request's headers.
        max_bytes: the largest decompressed size.

    Raises:
        EncodingRefused: the encoding is not gzip.
    """
    name = _encoding(headers)
    if name == "identity":
        return None
    if name not in ("gzip", "x-gzip"):
        raise EncodingRefused("the content-encoding of a body must be gzip or identity")
    return Gunzip(max_bytes)


def check_not_encoded(headers: Headers) -> None:
    """Refuse an encoded file upload, whose size has a limit of its own.

    Raises:
        EncodingRefused: the body is encoded.
    """
    if _encoding(headers) != "identity":
        raise EncodingRefused("the body of an upload must not be compressed")


def _encoding(headers: Headers) -> str:
    return headers.get("content-encoding", "identity").strip().lower()


def _broken() -> RequestError:
    return RequestError("the body is not valid gzip", code="invalid_body")
