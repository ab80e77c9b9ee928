"""The cost of requests, in each unit that rate limits count."""

from typing import NamedTuple

from vlmkit.types.demand import Demand


class Cost(NamedTuple):
    """An amount of each unit; the fields have the units' names.

    Attributes:
        requests: number of requests.
        tokens: text tokens, in prompts and answers.
        image_tokens: placeholder tokens of all images.
        images: number of images.
    """

    requests: int = 0
    tokens: int = 0
    image_tokens: int = 0
    images: int = 0

    def plus(self, other: "Cost") -> "Cost":
        """Return the sum."""
        return Cost(*(one + another for one, another in zip(self, other, strict=True)))

    def minus(self, other: "Cost") -> "Cost":
        """Return the difference."""
        return Cost(*(one - another for one, another in zip(self, other, strict=True)))


NOTHING = Cost()
ONE_REQUEST = Cost(requests=1)


def of_prompt(demand: Demand) -> Cost:
    """Return the cost of a prompt."""
    images = demand.image_tokens
    return Cost(tokens=demand.text_tokens, image_tokens=sum(images), images=len(images))
