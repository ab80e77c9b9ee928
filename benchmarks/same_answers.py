"""Compares two versions of the server: records their answers, and prints differences.

    python benchmarks/same_answers.py record --python PYTHON [--pythonpath PATH] FILE
    python benchmarks/same_answers.py record --python PYTHON --like FILE FILE
    python benchmarks/same_answers.py compare FILE FILE [--renamed RENAMES.toml]

``record`` starts servers by ``PYTHON -m vlmkit serve``, and sends thousands of requests over all
APIs. It needs no package itself. Two recordings of one version on one machine are equal byte by
byte, because random values and times are replaced (``same.wire.NORMAL``). With ``--like``, it
repeats the requests of an earlier recording; otherwise it also tests each field that the server
lists.

``compare`` prints each difference and exits with 1 if there is one. ``--renamed`` names a file of
deliberate renames. They are applied to the first recording before the comparison, and to requests
that ``--like`` repeats:

    [headers]
    "x-old-name" = "x-new-name"

    [texts]
    "old words of bodies and of values of headers" = "new words"

    [asked]
    "old words of requests, and of settings of the servers" = "new words"
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from same import answers, demo, differences, fields, routes, stored
from same.request import Json, Request, attachments
from same.servers import SERVERS, Source, started
from same.wire import Wire


def main() -> int:
    """Record or compare; return the exit status."""
    options = _options()
    if options.command == "compare":
        return differences.printed(options.old, options.new, options.renamed)
    like = _like(options.like, options.renamed) if options.like else None
    source = Source(options.python, options.pythonpath)
    with options.file.open("w", encoding="utf-8", newline="\n") as file:
        for line in record(source, like):
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    return 0


def record(source: Source, like: tuple[Json, list[Request]] | None) -> Iterator[Json]:
    """Yield the head of a recording, then each request with its answer.

    Args:
        source: the recorded version.
        like: head and requests of the recording to repeat.
    """
    head = {"servers": SERVERS, "attachments": attachments()} if like is None else like[0]
    yield head
    for name, settings in head["servers"].items():
        began, number = time.monotonic(), 0
        with (
            tempfile.TemporaryDirectory() as folder,
            started(source, settings, Path(folder)) as running,
        ):
            wire = Wire(running, head["attachments"])
            asked = all_requests(wire) if like is None and name == "open" else _listed(like)
            for request in asked:
                if request.server == name:
                    number += 1
                    yield {"request": request.as_json(), "answer": wire.answer(request)}
        print(f"{name}: {number} requests in {time.monotonic() - began:.0f} s", file=sys.stderr)


def all_requests(wire: Wire) -> Iterator[Request]:
    """Return all requests, with those for the fields that a server lists."""
    yield from stored.unique(
        each
        for some in (
            fields.requests(wire.json("/v1/capabilities")),
            answers.requests(),
            demo.requests(),
            stored.requests(),
            routes.requests(),
        )
        for each in some
    )


def _listed(like: tuple[Json, list[Request]] | None) -> Iterable[Request]:
    return stored.unique(routes.requests()) if like is None else like[1]


def _like(path: Path, renamed: Path | None) -> tuple[Json, list[Request]]:
    """Return the head and the requests of a recording, after renaming."""
    renames = differences.Renames.read(renamed)
    head, *lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    head["servers"] = {name: renames.settings(text) for name, text in head["servers"].items()}
    return head, [Request(**renames.request(line["request"])) for line in lines]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="send requests to servers and write the answers")
    recording.add_argument(
        "--python", default=sys.executable, help="an interpreter with vlmkit and its plugins"
    )
    recording.add_argument("--pythonpath", default="", help="precedes its own packages")
    recording.add_argument("--like", type=Path, help="a recording whose requests are repeated")
    recording.add_argument("--renamed", type=Path, help="a TOML file of renames for the requests")
    recording.add_argument("file", type=Path)
    comparing = commands.add_parser("compare", help="print the differences")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    comparing.add_argument("--renamed", type=Path, help="a TOML file of deliberate renames")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
