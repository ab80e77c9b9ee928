"""The places that an answer names, found when it is over, for requests that ask for them."""

from vlmkit.errors import RequestError
from vlmkit.interfaces.grounding_format import GroundingFormat
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.reader import AnswerReader
from vlmkit.interfaces.tokenizer import Option, Tokenizer
from vlmkit.running.engine_loop.grounding_search import find_regions
from vlmkit.types.delta import Delta, text_of
from vlmkit.types.grounding import GroundedRegion

PLACES: Option = "return_places"


class AnswerGrounding:
    """Reads one answer with its special tokens, which mark places in some families.

    Args:
        reader: a fresh one, which shows them.
        prompt: what is answered; shows one image, and has a format.
    """

    def __init__(self, reader: AnswerReader, prompt: Prompt, form: GroundingFormat) -> None:
        self._reader = reader
        self._form = form
        self._transform = next(slot.transform for slot in prompt.media if slot.kind == "image")
        self._deltas: list[Delta] = []

    def push(self, token_id: int) -> None:
        """Take one token."""
        self._deltas += self._reader.push(token_id)

    def found(self) -> tuple[GroundedRegion, ...]:
        """Return the places; the answer is over."""
        if self._transform is None:
            return ()
        text = text_of([*self._deltas, *self._reader.finish()])
        return find_regions(text, self._form, self._transform)


def check_grounding(prompt: Prompt) -> None:
    """Refuse to find places in a conversation whose picture is not known.

    Raises:
        RequestError: it does not show exactly one image, or it is not known what was done to it.
    """
    shown = [slot for slot in prompt.media if slot.kind == "image"]
    if len(shown) != 1:
        raise RequestError(
            f"{PLACES} needs a conversation with one image, which places are meant of; this one "
            f"has {len(shown)}",
            param=PLACES,
        )
    if shown[0].transform is None:
        raise RequestError(
            f"{PLACES} is not supported: it is not known how this model is shown pictures",
            param=PLACES,
            code="unsupported_parameter",
        )


def answer_grounding(prompt: Prompt, tokenizer: Tokenizer) -> AnswerGrounding | None:
    """Return what finds the places of an answer; None where nobody asked."""
    if prompt.place_format is None:
        return None
    return AnswerGrounding(
        tokenizer.reader(prompt, shows_special=True), prompt, prompt.place_format
    )
