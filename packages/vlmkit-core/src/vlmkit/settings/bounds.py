"""Types of numbers and of secrets in settings, with their bounds.

A limit on what clients may send can be as large as any number in JSON. A number that takes memory
or time by itself, such as a number of threads, has a bound of its own.
"""

from typing import Annotated

from msgspec import Meta

MOST = 2**53 - 1

Positive = Annotated[int, Meta(ge=1, le=MOST)]
Count = Annotated[int, Meta(ge=0, le=MOST)]
Threads = Annotated[int, Meta(ge=1, le=1024)]
CacheTokens = Annotated[int, Meta(ge=1, le=2**26)]
SequenceTokens = Annotated[int, Meta(ge=1, le=2**24)]
Sequences = Annotated[int, Meta(ge=1, le=2**16)]
Gibibytes = Annotated[float, Meta(gt=0.0, le=2**20)]
Fraction = Annotated[float, Meta(gt=0.0, le=1.0)]
Seconds = Annotated[float, Meta(gt=0.0, le=86_400.0)]

Secret = Annotated[
    str,
    Meta(
        min_length=16,
        max_length=512,
        pattern=r"^[!-~]+\Z",
        description="16 to 512 letters, digits and signs of ASCII, without spaces",
    ),
]
