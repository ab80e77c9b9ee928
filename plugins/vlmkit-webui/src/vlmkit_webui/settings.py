"""Settings of the web page."""

import msgspec


class WebPageSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether the server has the web page.

    Attributes:
        enabled: whether ``GET /`` is the web page. When null, it is where only this machine can
            reach the server.
    """

    enabled: bool | None = None
