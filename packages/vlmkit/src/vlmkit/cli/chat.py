"""``vlmkit chat``: a conversation in the terminal, or with lines from a pipe."""

import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmkit.cli import options, output
from vlmkit.errors import RequestError

if TYPE_CHECKING:
    from vlmkit.ask.completion import Chunk
    from vlmkit.ask.image import Image
    from vlmkit.ask.message import Message
    from vlmkit.model import Model

HELP = """\
/image FILE|URL   show a picture with the next message; so does dropping it here
/reset            forget the conversation
/help             these lines
/quit             leave; so does Ctrl-D. Ctrl-C stops an answer."""


@click.command()
@click.argument("model", required=False)
@click.option("--system", help="What the model is told before the conversation.")
@options.sampled
@options.configured
def chat(
    *,
    model: str | None,
    system: str | None,
    max_tokens: int | None,
    temperature: float | None,
    seed: int | None,
    config_file: Path | None,
    assignments: Sequence[str],
) -> None:
    """Talk with MODEL; pictures are shown with /image, or dropped."""
    from vlmkit.cli.loading import opened, wanted
    from vlmkit.cli.typed import messages

    params = options.stated(max_tokens=max_tokens, temperature=temperature, seed=seed)
    with opened(wanted(model, config_file, assignments)) as loaded:
        if sys.stdin.isatty():
            click.echo(f"{loaded.facts.name}. /help says what you can do.", err=True)
        Conversation(loaded, system, params).run(messages())


class Conversation:
    """What was said so far, and the pictures that wait for the next message."""

    def __init__(self, model: "Model", system: str | None, params: dict[str, Any]) -> None:
        from vlmkit.ask.message import Message

        self._model = model
        self._params = params
        self._opening = [Message.of("system", system)] if system else []
        self._messages: list[Message] = list(self._opening)
        self._images: list[Image] = []

    def run(self, messages: Iterable[str]) -> None:
        """Answer each message until there is none, or one says ``/quit``."""
        for message in messages:
            if message.strip() == "/quit":
                return
            try:
                self._take(message.strip())
            except RequestError as error:  # this message is wrong; the conversation is fine
                output.error(error)

    def _take(self, message: str) -> None:
        from vlmkit.cli.dropped import dropped

        command, _, argument = message.partition(" ")
        if command == "/image" and argument:
            self._show(dropped(argument)[1] or [argument.strip()])
            return
        if command == "/reset":
            self._messages, self._images = list(self._opening), []
            return
        text, pictures = dropped(message)
        self._show(pictures)
        if text.startswith("/") and not pictures and "\n" not in text:
            click.echo(HELP, err=True)
        elif text:
            self._answer(text)

    def _show(self, pictures: Sequence[str]) -> None:
        """Show pictures with the next message, or none of them if one cannot be opened."""
        from vlmkit.cli.images import opened

        images = [opened(source, self._model.facts.bounds.images) for source in pictures]
        self._images += images
        for image in images:
            click.echo(f"[{image.width}x{image.height}, shown with the next message]", err=True)

    def _answer(self, text: str) -> None:
        """Answer one message; what was said before Ctrl-C is kept, a refused message is not."""
        from vlmkit.ask.message import Message

        asked = [*self._messages, Message.of("user", text, self._images)]
        said: list[str] = []
        with suppress(KeyboardInterrupt), closing(self._chunks(asked)) as chunks:
            said.extend(map(output.Answer().write, chunks))
        click.echo()
        if said:
            self._messages = [*asked, Message.of("assistant", "".join(said))]
            self._images = []

    def _chunks(self, messages: "list[Message]") -> "Generator[Chunk]":
        """Yield the chunks of an answer; aborts it when closed."""
        stream = self._model.submit(self._model.request(messages, **self._params))
        try:
            yield from stream
        finally:
            stream.abort()
