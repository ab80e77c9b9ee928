"""``vlmkit chat``: a conversation in the terminal, or with lines from a pipe."""

import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmkit.cli import options, output
from vlmkit.errors import RequestError

if TYPE_CHECKING:
    from vlmkit.image import Image
    from vlmkit.message import Message
    from vlmkit.pipeline import Pipeline

HELP = """\
/image FILE|URL   show a picture with the next message
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
    """Talk with MODEL; pictures are shown with /image."""
    from vlmkit.cli.loading import opened, wanted

    params = options.stated(max_tokens=max_tokens, temperature=temperature, seed=seed)
    with opened(wanted(model, config_file, assignments)) as pipeline:
        if sys.stdin.isatty():
            click.echo(f"{pipeline.name}. /help says what you can do.", err=True)
        Conversation(pipeline, system, params).run(_lines())


class Conversation:
    """What was said so far, and the pictures that wait for the next message."""

    def __init__(self, pipeline: "Pipeline", system: str | None, params: dict[str, Any]) -> None:
        from vlmkit.message import Message

        self._pipeline = pipeline
        self._params = params
        self._opening = [Message.of("system", system)] if system else []
        self._messages: list[Message] = list(self._opening)
        self._images: list[Image] = []

    def run(self, lines: Iterator[str]) -> None:
        """Answer each line until there is none, or one says ``/quit``."""
        for line in lines:
            if line.strip() == "/quit":
                return
            try:
                self._take(line.strip())
            except RequestError as error:  # this message is wrong; the conversation is fine
                output.error(error)

    def _take(self, line: str) -> None:
        command, _, argument = line.partition(" ")
        if command == "/image" and argument:
            self._show(argument.strip())
        elif command == "/reset":
            self._messages, self._images = list(self._opening), []
        elif line.startswith("/"):
            click.echo(HELP, err=True)
        elif line:
            self._answer(line)

    def _show(self, source: str) -> None:
        from vlmkit.cli.images import opened

        image = opened(source, self._pipeline.settings.images)
        self._images.append(image)
        click.echo(f"[{image.width}x{image.height}, shown with the next message]", err=True)

    def _answer(self, line: str) -> None:
        """Answer one message; what was said before Ctrl-C is kept, a refused message is not."""
        from vlmkit.message import Message

        asked = [*self._messages, Message.of("user", line, self._images)]
        said: list[str] = []
        with suppress(KeyboardInterrupt), closing(self._chunks(asked)) as chunks:
            for text in chunks:
                said.append(text)
                output.answer(text)
        click.echo()
        if said:
            self._messages = [*asked, Message.of("assistant", "".join(said))]
            self._images = []

    def _chunks(self, messages: "list[Message]") -> "Generator[str]":
        """Yield the text of an answer; aborts it when closed."""
        stream = self._pipeline.submit(self._pipeline.request(messages, **self._params))
        try:
            for chunk in stream:
                yield chunk.text
        finally:
            stream.abort()


def _lines() -> Iterator[str]:
    """Yield what is typed, or the lines of a pipe."""
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    with suppress(ImportError):
        import readline  # noqa: F401 - gives input() editing and history

    while True:
        try:
            yield input("> ")
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            click.echo("\nCtrl-D or /quit leaves", err=True)
