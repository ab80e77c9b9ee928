"""Finds prose that is hard to read, and retired words, in docstrings, messages and Markdown.

Every function is pure: it takes a text or a syntax tree and returns what it finds.

* A *sentence* ends at ``.``, ``!`` or ``?`` before a capital, a digit, a quote or a bracket, and at
  the end of its paragraph. A heading, a list item and an entry of ``Args:`` are paragraphs of
  their own.
* A sentence is *long* if it has more than 30 words. Inline code, a link's target and a URL count
  as one word each. Code blocks, doctests, tables and HTML do not count.
* A sentence is *stacked* if it holds four or more words that open relative clauses
  (``RELATIVES``). A demonstrative "that" counts too, since telling them apart needs a parser.
"""

import ast
import functools
import inspect
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_WORDS = 30
MAX_RELATIVES = 3
RELATIVES = frozenset(
    (
        "that",
        "what",
        "whatever",
        "which",
        "whichever",
        "who",
        "whoever",
        "whom",
        "whomever",
        "whose",
    )
)
LOG_METHODS = frozenset(("critical", "debug", "error", "exception", "info", "log", "warning"))
LOGGERS = frozenset(("log", "logger", "logging"))

_SECTIONS = re.compile(
    r"^(Args|Arguments|Attributes|Class attributes|Keyword Args|Note|Notes|Raises|Returns"
    r"|Yields|Warning|Warnings):$"
)
_EXAMPLES = re.compile(r"^(Example|Examples):$")
_ENTRY = re.compile(r"^\*{0,2}[\w.]+(, \*{0,2}[\w.]+)*( \([^)]*\))?:\s+")
_ITEM = re.compile(r"^\s*([-*+]|\d+[.)])\s+")
_ABBREVIATION = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|approx|no)\.(?=\s)", re.IGNORECASE)
_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[A-Z0-9\"'(\[])")
_DRAWN = re.compile(r"[─│├└]")  # of a tree
_WORD = re.compile(r"\S*\w\S*")
_LETTERS = re.compile(r"[a-z]+")
_PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence, with inline code as the word ``Code``."""

    text: str

    @property
    def num_words(self) -> int:
        return len(_WORD.findall(self.text))

    @property
    def num_relatives(self) -> int:
        return sum(word in RELATIVES for word in _LETTERS.findall(self.text.lower()))

    @property
    def is_long(self) -> bool:
        return self.num_words > MAX_WORDS

    @property
    def is_stacked(self) -> bool:
        return self.num_relatives > MAX_RELATIVES


@dataclass(frozen=True, slots=True)
class Passage:
    """A text and where it stands.

    Attributes:
        owner: the qualified name of the class or function that has it; empty for the module's.
        line: the first line of the text.
        text: the text as it is written.
    """

    owner: str
    line: int
    text: str


# Sentences


def sentences(paragraphs: Iterable[str]) -> list[Sentence]:
    """Return the sentences of paragraphs."""
    found = []
    for paragraph in paragraphs:
        whole = _ABBREVIATION.sub(r"\1", _inline(paragraph))
        found += [Sentence(text) for text in _END.split(whole) if _WORD.search(text)]
    return found


def _inline(text: str) -> str:
    """Return a paragraph with inline code, links and URLs as single words."""
    text = re.sub(r":\w+:`[^`]*`", "Code", text)
    text = re.sub(r"(`+).+?\1", "Code", text, flags=re.DOTALL)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "Image", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<?https?://[^\s>)]+>?", "URL", text)
    return re.sub(r"\s+", " ", text.replace("**", "")).strip()


def docstring_paragraphs(docstring: str) -> list[str]:
    """Return the paragraphs of a docstring in Google's style, without its code."""
    return _Docstring().read(inspect.cleandoc(docstring))


class _Docstring:
    """Collects paragraphs line by line."""

    def __init__(self) -> None:
        self._paragraphs: list[str] = []
        self._lines: list[str] = []
        self._in_section = False
        self._in_code = False

    def read(self, text: str) -> list[str]:
        lines = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE).split("\n")
        for number, line in enumerate(lines):
            self._take(line, after_blank=number > 0 and not lines[number - 1].strip())
        self._flush()
        return self._paragraphs

    def _take(self, line: str, *, after_blank: bool) -> None:
        stripped = line.strip()
        if not stripped:
            self._flush()
        elif _SECTIONS.match(line) or _EXAMPLES.match(line):
            self._flush()
            self._in_section = not _EXAMPLES.match(line)
            self._in_code = not self._in_section
        elif not line.startswith(" "):
            self._in_section = self._in_code = False
            self._take_text(stripped, starts=bool(_ITEM.match(line)))
        elif self._in_section:
            starts = line.startswith("    ") and line[4] != " " and bool(_ENTRY.match(stripped))
            self._take_text(_ENTRY.sub("", stripped) if starts else stripped, starts=starts)
        else:
            self._in_code = self._in_code or after_blank
            self._take_text(stripped, starts=bool(_ITEM.match(line)))

    def _take_text(self, text: str, *, starts: bool) -> None:
        if self._in_code or text.startswith(">>>") or _DRAWN.search(text):
            return
        if starts:
            self._flush()
        self._lines.append(_ITEM.sub("", text) if starts else text)

    def _flush(self) -> None:
        if self._lines:
            self._paragraphs.append(" ".join(self._lines))
        self._lines = []


def markdown_paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a Markdown page, without its code, tables, headings and HTML."""
    text = re.sub(r"^( *)(```|~~~).*?^\1\2", "\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    paragraphs: list[list[str]] = [[]]
    is_in_list = False
    for line in text.split("\n"):
        stripped = line.strip().removeprefix("> ")
        starts_item = bool(_ITEM.match(line))
        is_code = line.startswith("    ") and not is_in_list and not paragraphs[-1]
        if not stripped or stripped.startswith(("#", "|", "<", "[!")) or is_code:
            paragraphs.append([])
        elif starts_item:
            paragraphs.append([_ITEM.sub("", line)])
        else:
            paragraphs[-1].append(stripped)
        if stripped:
            is_in_list = starts_item or (is_in_list and line.startswith(" "))
    return [" ".join(lines) for lines in paragraphs if lines]


# Texts in sources


def docstrings(tree: ast.Module) -> Iterator[Passage]:
    """Yield the docstrings of a module, its classes, functions and attributes."""
    yield from _docstrings_in(tree.body, "")


def _docstrings_in(body: Iterable[ast.stmt], owner: str) -> Iterator[Passage]:
    name = owner
    for node in body:
        if isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                yield Passage(name, node.lineno, node.value.value)
            continue
        name = owner
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings_in(node.body, f"{owner}.{node.name}".lstrip("."))
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _docstrings_in(node.body, owner)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            attribute = target.id if isinstance(target, ast.Name) else ""
            name = f"{owner}.{attribute}".strip(".")


def messages(tree: ast.Module) -> Iterator[Passage]:
    """Yield the texts that are passed to exceptions and to log calls.

    An exception is what a ``raise`` makes, or a call of a name that ends in ``Error``. A value in
    an f-string counts as one word.
    """
    calls = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            calls[id(node.exc)] = node.exc
        elif isinstance(node, ast.Call) and _is_message_call(node.func):
            calls[id(node)] = node
    for call in calls.values():
        for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
            text = _literal(argument)
            if text is not None and " " in text:
                yield Passage("", argument.lineno, text)


def _is_message_call(function: ast.expr) -> bool:
    if isinstance(function, ast.Attribute):
        value = function.value
        is_logger = isinstance(value, ast.Name) and value.id in LOGGERS
        return (is_logger and function.attr in LOG_METHODS) or function.attr.endswith("Error")
    return isinstance(function, ast.Name) and function.id.endswith("Error")


def _literal(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "Value" for part in node.values
        )
    return None


# Retired words


@dataclass(frozen=True, slots=True)
class Retired:
    """A word that the project no longer uses.

    Attributes:
        word: as it stood, in any of the forms ``two_words``, ``TwoWords`` and ``two words``.
        field: the term to use instead.
        scopes: where it is retired: ``definitions`` (names of modules, classes and functions),
            ``identifiers`` (those of parameters and variables, too) and ``docs``.
    """

    word: str
    field: str
    scopes: frozenset[str]

    @property
    def parts(self) -> tuple[str, ...]:
        return parts(self.word)

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(rf"\b{'[ _]?'.join(self.parts)}\b", re.IGNORECASE)


def read_retired(file: Path) -> list[Retired]:
    """Read the list of retired words."""
    rows = tomllib.loads(file.read_text())["words"]
    return [
        Retired(word, row["field"], frozenset(row["scopes"])) for row in rows for word in row["old"]
    ]


@functools.cache  # names repeat, and each is compared with every word
def parts(name: str) -> tuple[str, ...]:
    """Return the words of an identifier in small letters."""
    return tuple(part.lower() for part in _PARTS.findall(name))


def definitions(tree: ast.Module) -> Iterator[str]:
    """Yield the name of each class, function and method of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def variables(tree: ast.Module) -> Iterator[str]:
    """Yield the name of each parameter and of each variable and attribute that is assigned."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def retired_in_name(
    name: str, retired: Iterable[Retired], scope: str = "identifiers"
) -> list[Retired]:
    """Return the words, retired in a scope, that an identifier holds as whole words."""
    own = parts(name)
    return [each for each in retired if scope in each.scopes and _holds(own, each.parts)]


def _holds(own: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    size = len(wanted)
    return any(own[start : start + size] == wanted for start in range(len(own) - size + 1))


def retired_in_text(text: str, retired: Iterable[Retired]) -> list[Retired]:
    """Return the retired words of a text, each as often as it occurs, inline code included."""
    found = []
    for each in retired:
        if "docs" in each.scopes:
            found += [each] * len(each.pattern.findall(text))
    return found
