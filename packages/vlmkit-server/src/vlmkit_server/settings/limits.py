"""Settings of rate limits: for each API key, or for each address."""

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
"""A unit, a maximum and a period, such as ``tokens=20000/minute``."""

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
    """Rate limits.

    Attributes:
        key: limits of every API key. A key's own limit overrides the one of the same unit and
            period. A limit is a unit, an equals sign, a number, a slash and a period. Units are
            ``requests``, ``tokens`` of text, ``image_tokens`` and ``images``. Periods are
            ``minute``, ``hour``, ``day`` and ``month``.
        address: limits of every address where the server requires no keys, by the minute and the
            hour. Behind a proxy, all clients have one address.
        usage_file: file of the usage of daily and monthly limits, so that a restart keeps it. When
            empty, a restart forgets the usage. One server at a time may use a file.
    """

    key: LimitTexts = ()
    address: RateTexts = ()
    usage_file: OutputFile = ""

    def __post_init__(self) -> None:
        limits_of(self.key)
        limits_of(self.address)


class Limit(NamedTuple):
    """A rate limit.

    Attributes:
        unit: the unit: requests, text tokens in prompts and answers, image tokens, or images.
        most: the maximum.
        period: the period.
    """

    unit: Unit
    most: int
    period: Period

    def __str__(self) -> str:
        return f"{counted(self.most, self.unit)} a {self.period}"


def counted(num: int, unit: Unit) -> str:
    """Return an amount in words, such as ``1 image token``."""
    words = unit.replace("_", " ")
    return f"{num} {words.removesuffix('s') if num == 1 else words}"


def limits_of(texts: Iterable[str]) -> tuple[Limit, ...]:
    """Return the limits that some texts specify, each in the form of :data:`LimitText`.

    Raises:
        ValueError: two limits have the same unit and period.
    """
    found: dict[tuple[str, str], Limit] = {}
    for text in texts:
        unit, _, rest = text.partition("=")
        most, _, period = rest.partition("/")
        if (unit, period) in found:
            raise ValueError(f"there are two limits of {unit} a {period}")
        found[unit, period] = Limit(cast(Unit, unit), int(most), cast(Period, period))
    return tuple(found.values())
