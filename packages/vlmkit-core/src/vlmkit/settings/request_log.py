"""Settings of the request log."""

import msgspec

from vlmkit.settings.paths import OutputFile


class RequestLogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content and the destination of the request log.

    Attributes:
        file: the file to append to; null writes to the logger ``vlmkit.requests``.
        steps: also log a line for each step of the engine.
    """

    file: OutputFile | None = None
    steps: bool = False
