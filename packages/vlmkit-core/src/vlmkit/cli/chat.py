"""``vlmkit chat``: a conversation in the terminal, or with lines from a pipe."""

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
/image FILE|URL   show a picture or document with the next message; so does dropping it here
/reset            forget the conversation
/help             these lines
/quit             leave; so does Ctrl-D. Ctrl-C stops an answer.
TAB completes commands and paths."""


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
    from vlmkit.cli.typed_input import messages

    params = options.stated(max_tokens=max_tokens, temperature=temperature, seed=seed)
    with opened(wanted(model, config_file, assignments)) as loaded:
        if sys.stdin.isatty():
            facts = loaded.facts
            most = max_tokens or facts.defaults.max_tokens or facts.limits.max_sequence_tokens
            click.echo(
                f"{facts.name}, up to {most} tokens an answer (-m). /help says what you can do.",
                err=True,
            )
        Conversation(loaded, system, params).run(messages(COMMANDS))


class Conversation:
    """What was said so far, and the pictures that wait for the next message."""

    def __init__(self, model: "Model", system: str | None, params: dict[str, Any]) -> None:
        from vlmkit.types.message import Message

        self._model = model
        self._params = params
        self._opening = [Message.of("system", system)] if system else []
        self._messages: list[Message] = list(self._opening)
        self._images: list[ImagePart | FilePart] = []

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
        from vlmkit.cli.dropped_files import dropped
        from vlmkit.cli.images import matching

        command, _, argument = message.partition(" ")
        if command == "/image" and argument:
            self._show(dropped(argument)[1] or matching([argument.strip()]))
            return
        if command == "/reset":
            self._messages, self._images = list(self._opening), []
            return
        text, pictures = dropped(message)
        self._show(pictures)
        if not pictures and _is_command(message):
            self._explain(command)
        elif text:
            self._answer(text)

    def _explain(self, command: str) -> None:
        """Write the commands; of an unknown one that it is none, and which may be meant."""
        if command not in COMMANDS:
            near = difflib.get_close_matches(command, COMMANDS, n=1)
            meant = f": did you mean {near[0]}?" if near else ""
            click.secho(f"error: unknown command {command!r}{meant}", err=True, fg="red")
        click.echo(HELP, err=True)

    def _show(self, pictures: Sequence[str]) -> None:
        """Show pictures with the next message; if one is refused, none that was to be shown."""
        from vlmkit.cli.images import opened
        from vlmkit.types.message import ImagePart

        try:
            parts = [opened(source, self._model.facts.bounds) for source in pictures]
        except MediaError:
            self._drop_images()
            raise
        self._images += parts
        for part in parts:
            size = (
                f"{part.image.width}x{part.image.height}" if isinstance(part, ImagePart) else "file"
            )
            click.echo(f"[{size}, shown with the next message]", err=True)

    def _drop_images(self) -> None:
        """Forget pictures that wait, so that a question is not about others than it seems."""
        if self._images:
            click.echo("[no picture is shown with the next message]", err=True)
        self._images = []

    def _answer(self, text: str) -> None:
        """Answer one message; what was said before Ctrl-C is kept, a refused message is not."""
        from vlmkit.types.message import Message

        asked = [*self._messages, Message.of("user", text, self._images)]
        said: list[str] = []
        try:
            with suppress(KeyboardInterrupt), closing(self._chunks(asked)) as chunks:
                said.extend(map(output.Answer().write, chunks))
        except MediaError:
            self._drop_images()
            raise
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


def _is_command(message: str) -> bool:
    """Tell whether a message is meant as a command: one word after a slash, and no path."""
    word = message.partition(" ")[0]
    is_word = re.fullmatch(r"/\w*", word) is not None and "\n" not in message
    return is_word and (word == "/" or not os.path.exists(word))  # noqa: PTH110 - never raises
