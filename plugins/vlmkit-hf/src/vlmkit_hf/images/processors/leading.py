"""Processors that put an image before the begin-of-sequence token, such as BLIP-2's.

BLIP-2's text has no placeholder for its one image. The class here adds one, so that chat templates
can write it like others; the image then always comes first. The family's own code processes pixels.
"""

from typing import Any

FAMILIES = frozenset({"Blip2Processor"})


class Placeholder(str):
    """A text with the ``content`` attribute of an added token."""

    __slots__ = ()

    @property
    def content(self) -> str:
        """The text."""
        return str(self)


def with_leading_image(kind: Any) -> Any:
    """Return a subclass of a processor whose images have placeholders."""

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
            return images, [self._with_images_first(each, first) for each in text], None, None

        def replace_image_token(self, *_: Any, **__: Any) -> str:
            return str(self.image_token) * int(self.num_query_tokens)

        def _with_images_first(self, text: str, first: str) -> str:
            """Return a text with its placeholders moved to the start."""
            placeholders = str(self.image_token) * text.count(self.image_token)
            rest = text.replace(self.image_token, "")
            return (
                f"{placeholders}{rest}"
                if rest.startswith(first)
                else f"{placeholders}{first}{rest}"
            )

        def _first(self) -> str:
            """Return the token that the tokenizer puts before a text."""
            tokenizer = self.tokenizer
            has_first = tokenizer.bos_token_id in tokenizer("").input_ids[:1]
            return str(tokenizer.bos_token) if has_first else ""

    Processor.__name__ = Processor.__qualname__ = kind.__name__
    return Processor
