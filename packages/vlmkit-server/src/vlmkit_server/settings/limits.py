"""How much may be asked for in a time: of each key, or of each address."""

from collections.abc import Iterable
from typing import Annotated, Literal, NamedTuple, cast

import msgspec
from msgspec import Meta

from vlmkit.settings.paths import OutputFile

Unit = Literal["requests", "tokens", "image_tokens", "images"]
Period = Literal["minute", "hour", "day", "month"]

_LIMIT = r"^(requests|tokens|image_tokens|images)=(0|[1-9][0-9]{0,14})/"

LimitText = Annotated[
    str,
    Meta(
        pattern=_LIMIT + r"(minute|hour|day|month)\Z",
        description="requests, tokens, image_tokens or images, '=', a number of at most 15 digits, "
        "'/', and minute, hour, day or month",
        examples=["tokens=20000/minute"],
    ),
]
"""What is counted, how much of it, and the time, such as ``tokens=20000/minute``."""

RateText = Annotated[
    str,
    Meta(
        pattern=_LIMIT + r"(minute|hour)\Z",
        description="requests, tokens, image_tokens or images, '=', a number of at most 15 digits, "
        "'/', and minute or hour",
        examples=["requests=60/minute"],
    ),
]

LimitTexts = Annotated[tuple[LimitText, ...], Meta(max_length=16)]
RateTexts = Annotated[tuple[RateText, ...], Meta(max_length=16)]


class LimitsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much may be asked for in a time.

    Attributes:
        key: limits of every API key, but for those of the same unit and time that it has itself:
            ``requests``, ``tokens`` of text, ``image_tokens`` or ``images``, an equals sign, a
            number, a slash, and ``minute``, ``hour``, ``day`` or ``month``.
        address: limits of every address where no keys are asked for, by the minute and the hour;
            behind a proxy, all clients have one address.
        usage_file: what was used of the limits of days and months, so that a restart forgets none
            of it; it is forgotten when empty. One server uses it at a time.
    """

    key: LimitTexts = ()
    address: RateTexts = ()
    usage_file: OutputFile = ""

    def __post_init__(self) -> None:
        limits_of(self.key)
        limits_of(self.address)


class Limit(NamedTuple):
    """So much of one thing in a time.

    Attributes:
        unit: what is counted: requests, tokens of text in prompts and answers, tokens of images,
            or images.
        most: how much of it.
        period: the time.
    """

    unit: Unit
    most: int
    period: Period

    def __str__(self) -> str:
        return f"{counted(self.most, self.unit)} a {self.period}"


def counted(num: int, unit: Unit) -> str:
    """Return so much of a unit in words, such as ``1 image token``."""
    words = unit.replace("_", " ")
    return f"{num} {words.removesuffix('s') if num == 1 else words}"


def limits_of(texts: Iterable[str]) -> tuple[Limit, ...]:
    """Return the limits that some texts say, each of which is a :data:`LimitText`.

    Raises:
        ValueError: two say how much of one thing in one time.
    """
    found: dict[tuple[str, str], Limit] = {}
    for text in texts:
        unit, _, rest = text.partition("=")
        most, _, period = rest.partition("/")
        if (unit, period) in found:
            raise ValueError(f"there are two limits of {unit} a {period}")
        found[unit, period] = Limit(cast(Unit, unit), int(most), cast(Period, period))
    return tuple(found.values())
