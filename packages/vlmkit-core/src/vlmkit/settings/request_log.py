"""What the log of requests holds, and where it goes."""

import msgspec

from vlmkit.settings.paths import OutputFile


class RequestLogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is written, and where to.

    Attributes:
        file: the file that lines are added to; null gives them to the logger ``vlmkit.requests``.
        steps: also write a line for each step of the engine.
    """

    file: OutputFile | None = None
    steps: bool = False
