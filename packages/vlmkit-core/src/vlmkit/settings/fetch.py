"""Whether images are fetched by their URLs, and from where."""

from typing import Annotated

import msgspec
from msgspec import Meta

from vlmkit.settings.bounds import Positive, Seconds


class FetchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether, and from where, images are fetched that a request names by URL.

    Attributes:
        enabled: fetch at all; when off, only ``data:`` URLs are taken.
        allowed_hosts: host names to fetch from, exact; empty allows every public host.
        allow_http: also fetch without encryption.
        max_redirects: redirects that are followed; each one is checked like the first address.
        max_bytes: size of one image file.
        timeout_s: time for one image, redirects included.
    """

    enabled: bool = False
    allowed_hosts: tuple[str, ...] = ()
    allow_http: bool = False
    max_redirects: Annotated[int, Meta(ge=0, le=10)] = 3
    max_bytes: Positive = 20 * 2**20
    timeout_s: Seconds = 10.0
