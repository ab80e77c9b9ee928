"""Writes the project of a new plugin: a working example of its kind under the author's name.

The examples are files of this package, in ``templates``; each is complete but for the words that
begin with ``your``. Nothing is installed, and no file that exists is touched.
"""

import importlib.metadata
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmkit.errors import ConfigError, PluginError
from vlmkit.kit.one_line import named
from vlmkit.plugins.kinds import Kind

TEMPLATES = Path(__file__).parent / "templates"
COMMON = "common"
PREFIX = "vlmkit-"
MAX_NAME_CHARS = 40
NAME = re.compile(r"[a-z][a-z0-9]+(-[a-z0-9]+)*")
TAKEN = frozenset(
    {
        *("core", "demo", "guidance", "heif", "hf", "mcp", "mock", "monitor", "onnx", "pdf"),
        *("server", "testing", "torch", "typical"),
    }
)
"""Names of distributions that belong to vlmkit."""
MEANINGFUL = frozenset({"auto", "builtin", "none", "vlmkit"})
"""Names that mean something of their own in a config or among plugins."""


@dataclass(frozen=True, slots=True)
class Template:
    """What differs in the project of one kind.

    Attributes:
        summary: what the example does, as the project's description.
        needs: distributions that it imports, besides vlmkit.
        tests: distributions that its tests need besides.
        tried_with: what ``vlmkit plugins check`` needs to be told besides the name.
        folder: where its files are, if a plugin that owns the kind has them; by default, the folder
            of the kind's name in ``templates``.
    """

    summary: str
    needs: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    tried_with: str = ""
    folder: Path | None = None


MSGSPEC, NUMPY, CLICK = "msgspec>=0.22", "numpy>=2.1", "click>=8.2"
HTTPX = "httpx2>=2.12"
SERVER = "vlmkit-server>=0.1,<0.2"
EXAMPLES = {
    "tokenizer": Template("Characters as tokens, for vlmkit", tried_with="tests/model"),
    "media_encoder": Template(
        "Features of pictures from another process, for vlmkit",
        (MSGSPEC, NUMPY),
        ("vlmkit-mock",),
        tried_with="mock",
    ),
    "engine": Template(
        "An engine with one layer of attention, for vlmkit",
        (MSGSPEC, NUMPY),
        ("vlmkit-mock",),
        tried_with="mock",
    ),
    "scheduler": Template("Shortest prompt first, for vlmkit", (MSGSPEC,)),
    "sampler": Template(
        "Top-n-sigma sampling for vlmkit", ("array-api-compat>=1.11", MSGSPEC), (NUMPY,)
    ),
    "proposer": Template("Guesses tokens from the text so far, for vlmkit", (MSGSPEC,)),
    "constraint": Template("Answers from a list of texts, for vlmkit", (NUMPY,)),
    "observer": Template("A line of CSV for each request to vlmkit", (MSGSPEC,)),
    "media_loader": Template("Pages of TIFF files as pictures, for vlmkit", ("pillow>=13",)),
    "api": Template(
        "Questions for shell scripts over HTTP, for vlmkit", ("litestar>=2.25,<3", MSGSPEC, SERVER)
    ),
    "tool_source": Template(
        "A tool that calculates, for vlmkit", (MSGSPEC, SERVER), tried_with="--call-tools"
    ),
    "monitor": Template("Requests by route and status as JSON, for vlmkit", (MSGSPEC, SERVER)),
    "runner": Template(
        "Requests answered by another server, for vlmkit",
        (HTTPX, MSGSPEC),
        ("vlmkit-mock", "vlmkit-server"),
        tried_with="yourname://127.0.0.1:8000/mock --config remote.toml",
    ),
    "model": Template("Models in one folder, by short names, for vlmkit"),
    "command": Template(
        "Asks a model of vlmkit about every picture in a folder", (CLICK,), ("vlmkit-mock",)
    ),
}
"""By the name of the kind; there is one for each kind of the core and the server."""


@dataclass(frozen=True, slots=True)
class Project:
    """A project that was written.

    Attributes:
        folder: where it is.
        distribution: what it is called, ``vlmkit-`` and its name.
        files: what it consists of, below the folder.
        check: the arguments of ``vlmkit plugins check`` with which it is tried.
    """

    folder: Path
    distribution: str
    files: tuple[Path, ...]
    check: tuple[str, ...]


def name_of(folder: Path) -> str:
    """Return what a plugin is called whose project lies in a folder: the folder's own name."""
    return folder.resolve().name.lower().replace("_", "-").removeprefix(PREFIX)


def template_of(kind: Kind[Any]) -> Template | None:
    """Return the template of a kind, of vlmkit or of the plugin that owns it; None without one.

    Raises:
        PluginError: the owner's cannot be imported, or is none.
    """
    if kind.name in EXAMPLES or not kind.template:
        return EXAMPLES.get(kind.name)
    try:
        template: object = pkgutil.resolve_name(kind.template)
    except (ImportError, AttributeError, ValueError) as error:
        raise PluginError(
            f"the template {kind.template!r} of kind {kind.name!r} cannot be imported: "
            f"{named(error)}"
        ) from error
    if not isinstance(template, Template):
        raise PluginError(f"{kind.template!r}, of kind {kind.name!r}, is no Template")
    return template


def write(kind: Kind[Any], folder: Path, name: str) -> Project:
    """Write a project of a kind into a folder that is empty, or is not there yet.

    Args:
        kind: one of vlmkit's own, or of a plugin that has a template for it.
        folder: where to.
        name: of the provider; the distribution is called ``vlmkit-`` and the same.

    Raises:
        ConfigError: the name cannot be one, or is another's; the folder holds something, or cannot
            be written.
        PluginError: there is no example of the kind.
    """
    template = template_of(kind)
    if template is None:
        raise PluginError(
            f"there is no template of kind {kind.name!r}", hint=f"there are: {', '.join(EXAMPLES)}"
        )
    _refuse_name(name, kind)
    contents = dict(_contents(kind, template, name))
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(
                f"folder {str(folder)!r} is not empty", hint="name one that is not there yet"
            )
        for path, content in contents.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            with (folder / path).open("x", encoding="utf-8", newline="\n") as file:  # replaces none
                file.write(content)
    except OSError as error:
        raise ConfigError(f"folder {str(folder)!r} cannot be written: {error.strerror}") from error
    arguments = (name, template.tried_with.replace("yourname", name))
    return Project(folder, PREFIX + name, tuple(sorted(contents)), tuple(filter(None, arguments)))


def _refuse_name(name: str, kind: Kind[Any]) -> None:
    if NAME.fullmatch(name) is None or len(name) > MAX_NAME_CHARS:
        raise ConfigError(
            f"plugin name {name!r} must be small letters and digits with '-' between words, of 2 "
            f"to {MAX_NAME_CHARS} characters, and begin with a letter",
            hint="give one by --name, or name the folder so",
        )
    if name in {*TAKEN, *MEANINGFUL, *kind.reserved}:
        raise ConfigError(
            f"plugin name {name!r} is one of vlmkit's own", hint="give another by --name"
        )
    try:
        importlib.metadata.distribution(PREFIX + name)
    except importlib.metadata.PackageNotFoundError:
        return
    raise ConfigError(
        f"a distribution {PREFIX + name!r} is installed already",
        hint="uninstall it, or give another name by --name",
    )


def _contents(kind: Kind[Any], template: Template, name: str) -> Iterator[tuple[Path, str]]:
    """Yield each file of a project and its text."""
    words = {
        ', "yourneeds"': "".join(f', "{need}"' for need in template.needs),
        ', "yourtests"': "".join(f', "{need}"' for need in template.tests),
        "check yourname\n": f"check yourname {template.tried_with}".rstrip() + "\n",
        "yoursummary": template.summary,
        "vlmkit-yourkind": f"vlmkit-{kind.name.replace('_', '-')}",
        "yourkind": kind.words,
        "vlmkit_yourname": f"vlmkit_{name.replace('-', '_')}",
        "test_yourname": f"test_{name.replace('-', '_')}",
        "yourname": name,
    }

    def filled(text: str) -> str:
        for word, own in words.items():
            text = text.replace(word, own)
        return text

    end = (TEMPLATES / COMMON / "develop.md").read_text(encoding="utf-8")
    for root in (TEMPLATES / COMMON, template.folder or TEMPLATES / kind.name):
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            place = path.relative_to(root).as_posix().replace("gitignore", ".gitignore")
            if place == "develop.md" or "__pycache__" in place:
                continue
            text = path.read_text(encoding="utf-8") + (end if place == "README.md" else "")
            yield Path(filled(place)), filled(text)
