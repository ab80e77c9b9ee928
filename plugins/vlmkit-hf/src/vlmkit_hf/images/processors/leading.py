"""Processors that put a picture before everything else, even before the token that begins a text.

BLIP-2's makes an image's places of nothing: its text has no placeholder, and its model takes one
picture. Here it gets a placeholder, as others have, so that chat templates can say where a picture
is; wherever that is, the picture leads. Pixels are the family's own code's business.
"""

from typing import Any

FAMILIES = frozenset({"Blip2Processor"})


class Placeholder(str):
    """A text that can be asked for its text, as an added token can."""

    __slots__ = ()

    @property
    def content(self) -> str:
        """The text."""
        return str(self)


def leading(kind: Any) -> Any:
    """Return a processor's class, whose images have placeholders."""

    class Processor(kind):  # type: ignore[misc]
        image_leads = True

        @property
        def image_token(self) -> Placeholder:
            return self._placeholder

        @image_token.setter
        def image_token(self, token: Any) -> None:  # an added token, or its text
            self._placeholder = Placeholder(token)

        @property
        def image_token_id(self) -> int:
            return int(self.tokenizer.convert_tokens_to_ids(str(self.image_token)))

        def __call__(self, *, text: Any, images: Any = None, **options: Any) -> Any:
            bare = [each.replace(self.image_token, "") for each in text]
            return super().__call__(images=images, text=bare, **options)

        def prepare_inputs_layout(
            self, images: Any = None, text: Any = None, *, add_special_tokens: bool = True, **_: Any
        ) -> tuple[Any, Any, None, None]:
            first = self._first() if add_special_tokens else ""
            return images, [self._led(each, first) for each in text], None, None

        def replace_image_token(self, *_: Any, **__: Any) -> str:
            return str(self.image_token) * int(self.num_query_tokens)

        def _led(self, text: str, first: str) -> str:
            """Return a text whose placeholders stand first."""
            places = str(self.image_token) * text.count(self.image_token)
            rest = text.replace(self.image_token, "")
            return f"{places}{rest}" if rest.startswith(first) else f"{places}{first}{rest}"

        def _first(self) -> str:
            """Return the token that the tokenizer puts before a text."""
            tokenizer = self.tokenizer
            has_first = tokenizer.bos_token_id in tokenizer("").input_ids[:1]
            return str(tokenizer.bos_token) if has_first else ""

    Processor.__name__ = Processor.__qualname__ = kind.__name__
    return Processor
