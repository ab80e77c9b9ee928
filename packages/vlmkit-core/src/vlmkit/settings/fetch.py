"""Settings of fetching images by URL."""

from typing import Annotated

import msgspec
from msgspec import Meta

from vlmkit.settings.bounds import Positive, Seconds


class FetchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether images in requests are fetched by URL, and from where.

    Attributes:
        enabled: fetch images; when off, only ``data:`` URLs are accepted.
        allowed_hosts: exact host names to fetch from; empty allows every public host.
        allow_http: also fetch without encryption.
        max_redirects: maximum number of redirects; each one is checked like the first address.
        max_bytes: maximum size of one image file.
        timeout_s: time limit for one image, redirects included.
    """

    enabled: bool = False
    allowed_hosts: tuple[str, ...] = ()
    allow_http: bool = False
    max_redirects: Annotated[int, Meta(ge=0, le=10)] = 3
    max_bytes: Positive = 20 * 2**20
    timeout_s: Seconds = 10.0
