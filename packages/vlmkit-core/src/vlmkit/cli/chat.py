"""``vlmkit chat``: a conversation with a model in the terminal, or with lines from a pipe."""

import difflib
import os
import re
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmkit.cli import options, output
from vlmkit.errors import MediaError, RequestError

if TYPE_CHECKING:
    from vlmkit.model import Model
    from vlmkit.types.completion import Chunk
    from vlmkit.types.media import FilePart
    from vlmkit.types.message import ImagePart, Message

COMMANDS = ("/image", "/reset", "/help", "/quit")
HELP = """\
/image FILE|URL   add an image or document to the next message; dropping a file here does the same
/reset            start a new conversation
/help             show this help
/quit             quit; so does Ctrl-D. Ctrl-C stops an answer.
TAB completes commands and paths."""


@click.command()
@click.argument("model", required=False)
@click.option("--system", help="System message before the conversation.")
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
    """Chat with MODEL; add images with /image, or by dropping files."""
    from vlmkit.cli.loading import opened, wanted
    from vlmkit.cli.typed_input import messages

    params = options.stated(max_tokens=max_tokens, temperature=temperature, seed=seed)
    with opened(wanted(model, config_file, assignments)) as loaded:
        if sys.stdin.isatty():
            facts = loaded.facts
            limit = max_tokens or facts.defaults.max_tokens or facts.limits.max_sequence_tokens
            click.echo(
                f"{facts.name}, up to {limit} tokens per answer (-m). /help lists the commands.",
                err=True,
            )
        Conversation(loaded, system, params).run(messages(COMMANDS))


class Conversation:
    """The messages so far, and the images for the next message."""

    def __init__(self, model: "Model", system: str | None, params: dict[str, Any]) -> None:
        from vlmkit.types.message import Message

        self._model = model
        self._params = params
        self._opening = [Message.of("system", system)] if system else []
        self._messages: list[Message] = list(self._opening)
        self._images: list[ImagePart | FilePart] = []

    def run(self, messages: Iterable[str]) -> None:
        """Answer each message until the input ends or a message is ``/quit``."""
        for message in messages:
            if message.strip() == "/quit":
                return
            try:
                self._handle(message.strip())
            except RequestError as error:  # the message is invalid; the conversation continues
                output.error(error)

    def _handle(self, message: str) -> None:
        """Run a command, or answer a message."""
        from vlmkit.cli.dropped_files import dropped
        from vlmkit.cli.images import matching

        command, _, argument = message.partition(" ")
        if command == "/image" and argument:
            self._show(dropped(argument)[1] or matching([argument.strip()]))
            return
        if command == "/reset":
            self._messages, self._images = list(self._opening), []
            return
        text, images = dropped(message)
        self._show(images)
        if not images and _is_command(message):
            self._explain(command)
        elif text:
            self._answer(text)

    def _explain(self, command: str) -> None:
        """Write the list of commands, after an error if the command is unknown."""
        if command not in COMMANDS:
            near = difflib.get_close_matches(command, COMMANDS, n=1)
            hint = f": did you mean {near[0]}?" if near else ""
            click.secho(f"error: unknown command {command!r}{hint}", err=True, fg="red")
        click.echo(HELP, err=True)

    def _show(self, sources: Sequence[str]) -> None:
        """Add images to the next message; if one is refused, drop all images of that message."""
        from vlmkit.cli.images import opened
        from vlmkit.types.message import ImagePart

        try:
            parts = [opened(source, self._model.facts.bounds) for source in sources]
        except MediaError:
            self._drop_images()
            raise
        self._images += parts
        for part in parts:
            size = (
                f"{part.image.width}x{part.image.height}" if isinstance(part, ImagePart) else "file"
            )
            click.echo(f"[{size}, added to the next message]", err=True)

    def _drop_images(self) -> None:
        """Drop the images for the next message, so that it is not sent with only some of them."""
        if self._images:
            click.echo("[the next message has no image]", err=True)
        self._images = []

    def _answer(self, text: str) -> None:
        """Answer one message; keep an answer stopped by Ctrl-C, but not a refused message."""
        from vlmkit.types.message import Message

        messages = [*self._messages, Message.of("user", text, self._images)]
        texts: list[str] = []
        try:
            with suppress(KeyboardInterrupt), closing(self._chunks(messages)) as chunks:
                texts.extend(map(output.Answer().write, chunks))
        except MediaError:
            self._drop_images()
            raise
        click.echo()
        if texts:
            self._messages = [*messages, Message.of("assistant", "".join(texts))]
            self._images = []

    def _chunks(self, messages: "list[Message]") -> "Generator[Chunk]":
        """Yield the chunks of an answer; aborts it when closed."""
        stream = self._model.submit(self._model.request(messages, **self._params))
        try:
            yield from stream
        finally:
            stream.abort()


def _is_command(message: str) -> bool:
    """Return whether a message is a command: one word after a slash, and not a path."""
    word = message.partition(" ")[0]
    is_word = re.fullmatch(r"/\w*", word) is not None and "\n" not in message
    return is_word and (word == "/" or not os.path.exists(word))  # noqa: PTH110 - never raises
