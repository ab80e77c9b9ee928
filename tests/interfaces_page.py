"""Writes the reference pages of interfaces, values and Python from signatures and docstrings.

``nox -s reference`` renews them; a test fails when they are out of date. Nothing is imported. A
page shows what the sources contain, without names that begin with an underscore.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from vlmkit.checkpoints.generation_config import FIELDS
from vlmkit.deprecated import MOVED, RENAMED
from vlmkit.plugins.kinds import KINDS, Kind
from vlmkit_server.plugin import VLMKIT_KINDS
from vlmkit_torch.interfaces import kinds as torch_kinds

FIELDS_BEGIN, FIELDS_END = "<!-- fields -->", "<!-- end of fields -->"

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs/reference"
SOURCE = ROOT / "packages/vlmkit-core/src/vlmkit"
SOURCES = {
    "vlmkit_server.": ROOT / "packages/vlmkit-server/src",
    "vlmkit_torch.": ROOT / "plugins/vlmkit-torch/src",
}
"""What names of the modules of other distributions begin with; those of the core are shortened."""
KINDS_BY_OWNER = {
    "vlmkit-core": KINDS,
    "vlmkit-server": VLMKIT_KINDS,
    torch_kinds.DISTRIBUTION: torch_kinds.KINDS,
}
OWNERS = {kind: owner for owner, kinds in KINDS_BY_OWNER.items() for kind in kinds}
ALL_KINDS = tuple(OWNERS)
SELECTED_BY = {"torch_attention": "engine.attention", "torch_weights": "engine.weights"}
"""The settings that select providers of kinds without a section."""
TEMPLATES = "../../packages/vlmkit-testing/src/vlmkit_testing/templates"
TORCH_TEMPLATES = "../../plugins/vlmkit-torch/src/vlmkit_torch/testing/templates"

HEAD = """# Interfaces

What each kind of plugin implements, and the values that cross its border: signatures, shapes, units
and errors. Made of the sources by `nox -s reference`. [Hooks](hooks.md) says how a plugin offers a
provider, [Contracts](contracts.md) how it is tried, and
[Write a plugin](../how-to/write-a-plugin.md) where to begin. [Values](values.md) has what is asked
and answered, and what plugins may build with.

Nothing needs to be inherited but `Observer` and `Monitor`, to leave out what is of no interest.
`Seq` is `collections.abc.Sequence`, since `Sequence` is an answer in the making."""

OF_KINDS = {
    "tokenizer": ("interfaces.tokenizer", "interfaces.reader"),
    "media_encoder": ("interfaces.media_encoder", "interfaces.features"),
    "engine": ("interfaces.engine", "interfaces.view", "interfaces.memory_plan"),
    "scheduler": ("interfaces.scheduler", "interfaces.step"),
    "sampler": ("interfaces.sampler",),
    "proposer": ("interfaces.proposer",),
    "constraint": ("interfaces.constraint",),
    "observer": ("interfaces.observer", "interfaces.cache_events"),
    "media_loader": ("interfaces.media_loader",),
    "runner": ("interfaces.runner",),
    "api": (
        "vlmkit_server.interfaces.api",
        "vlmkit_server.interfaces.conversation",
        "vlmkit_server.interfaces.model_info",
        "vlmkit_server.conversation.exchange",
        "vlmkit_server.conversation.host",
        "vlmkit_server.exchange.streaming",
    ),
    "tool_source": ("vlmkit_server.interfaces.tool_source",),
    "monitor": ("vlmkit_server.interfaces.monitor",),
    "model": ("kit.checkpoint",),
    "command": (),
    "torch_attention": (
        "vlmkit_torch.interfaces.torch_attention",
        "vlmkit_torch.attention.layer_kind",
        "vlmkit_torch.attention.parameters",
        "vlmkit_torch.attention.step",
        "vlmkit_torch.cache.kv_cache",
        "vlmkit_torch.devices.uploads",
    ),
    "torch_weights": (
        "vlmkit_torch.interfaces.torch_weights",
        "vlmkit_torch.loading.stored_tensors",
    ),
}
ONLY = {
    "vlmkit_torch.attention.step": ("NewTokens", "StepTokens"),
    "vlmkit_torch.cache.kv_cache": ("KVPools", "Int8Pools"),
}
"""The public names of modules of which the others are private."""
SHARED = {
    "prompts and answers": (
        "interfaces.prompt",
        "interfaces.sequence",
        "interfaces.cancellation",
        "interfaces.chat_format",
        "interfaces.grounding_format",
    ),
    "fields of requests": ("interfaces.request_field",),
    "providers": ("plugins.build_context", "plugins.provider"),
}
NOTES = {"providers": "Import these from `vlmkit.plugins.registry`, which is where they stay."}
SECTIONS = {"Args": "takes", "Attributes": "", "Raises": "raises", "Returns": "returns"}


CHANGELOG = ROOT / "CHANGELOG.md"
SUBSTITUTIONS_BEGIN = "<!-- substitutions: made of the sources by `nox -s reference` -->"
SUBSTITUTIONS_END = "<!-- end of substitutions -->"
MAX_VALUE_CHARS = 400
"""Of a constant: what is longer says less than its name."""

VALUES_HEAD = """# Values

What is asked and answered, and what plugins may build with, in the order of the modules. Made of
the sources by `nox -s reference`, as [Interfaces](interfaces.md) is."""

PYTHON_HEAD = """# Python

What a program begins with: `vlmkit.load` returns a `vlmkit.Model`, and whatever goes wrong is a
`vlmkit.VlmkitError`. Made of the sources by `nox -s reference`. What is asked and answered stands
in [Values](values.md), how to serve from a program in
[Serve a model](../how-to/serve.md#in-python)."""

OF_PYTHON = {"assembly.load": ("load", "fetch"), "model": ("Model",)}
OF_VALUES = {
    "types": "What is asked and answered",
    "kit": "What plugins may build with",
    "image_files": "Image files, for media loaders",
}


def pages() -> dict[Path, str]:
    """Return every page, by its file."""
    made = {"interfaces": interfaces, "values": values, "python": python, "folders": folders}
    found = {REFERENCE / f"{name}.md": make() for name, make in made.items()}
    return found | {CHANGELOG: changelog()}


def changelog() -> str:
    """Return the changelog with the substitutions for plugins that use old names."""
    head, _, rest = CHANGELOG.read_text().partition(SUBSTITUTIONS_BEGIN)
    _, end, tail = rest.partition(SUBSTITUTIONS_END)
    names = {old: new for renamed in RENAMED.values() for old, new in renamed.items()}
    classes = {old: new for old, new in names.items() if old[0].isupper()}
    modules = sorted(MOVED.items(), key=lambda pair: (-pair[0].count("."), pair))
    rows = [(old.replace(".", "[.]"), new) for old, new in [*modules, *sorted(classes.items())]]
    script = "\n".join(f"s/\\b{old}\\b/{new}/g" for old, new in rows)
    block = f"```console\ncat > names.sed <<'END'\n{script}\nEND\n"
    block += "find . -name '*.py' -exec sed -i -f names.sed {} +\n```"
    return f"{head}{SUBSTITUTIONS_BEGIN}\n\n{block}\n\n{end}{tail}"


def folders() -> str:
    """Return the page on folders, with the table of the fields of generation_config.json."""
    head, _, rest = (REFERENCE / "folders.md").read_text().partition(FIELDS_BEGIN)
    _, end, tail = rest.partition(FIELDS_END)
    alike: dict[tuple[str, str, str], list[str]] = {}
    for field in FIELDS:
        neutral = ", ".join(f"`{value!r}`" for value in field.neutral)
        names = alike.setdefault((neutral, field.action, field.reason), [])
        names.append(f"`{field.name}`")
    rows = [f"| {', '.join(names)} | {' | '.join(rest)} |" for rest, names in alike.items()]
    table = ["| field | neutral | here | |", "|---|---|---|---|", *rows]
    return "\n".join([f"{head}{FIELDS_BEGIN}", *table, f"{end}{tail}"])


def python() -> str:
    """Return the page of what programs call, and of all errors."""
    parts = [PYTHON_HEAD]
    for module, names in OF_PYTHON.items():
        for node in _tree(module).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names:
                parts.append(f"## `vlmkit.{node.name}`")
                parts += _public(node)
    return "\n\n".join(part for part in [*parts, "## Errors", *_module("errors")] if part) + "\n"


def values() -> str:
    """Return the page of values and helpers."""
    parts = [VALUES_HEAD]
    for package, title in OF_VALUES.items():
        parts.append(f"## {title}")
        for path in sorted((SOURCE / package).glob("*.py")):
            if not path.stem.startswith("_"):
                parts += _module(f"{package}.{path.stem}")
    return "\n\n".join(part for part in parts if part) + "\n"


def interfaces() -> str:
    """Return the page of the interfaces."""
    parts = [HEAD, _axes()]
    for kind in ALL_KINDS:
        parts += [f"## {kind.words.capitalize()}", _introduction(kind)]
        parts += [part for module in OF_KINDS[kind.name] for part in _module(module)]
    for title, modules in SHARED.items():
        parts += [f"## {title.capitalize()}", NOTES.get(title, "")]
        parts += [part for module in modules for part in _module(module)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _axes() -> str:
    """Return what is said of all interfaces."""
    text = ast.get_docstring(ast.parse((SOURCE / "interfaces/__init__.py").read_text())) or ""
    return _prose(text.partition("\n\n")[2].partition("heavy import.")[2].strip())


def _introduction(kind: Kind[object]) -> str:
    made = kind.meaning.removeprefix("what ")
    contract = f"[its contract](contracts.md) is `{kind.contract.replace(':', '.')}`"
    command = f"vlmkit plugins new {kind.name.replace('_', '-')} FOLDER"
    templates = TORCH_TEMPLATES if kind.template else TEMPLATES
    example = f"[a whole example]({templates}/{kind.name}), which `{command}` makes yours"
    links = [f"`{kind.hook}`", *([contract] if kind.contract else []), example]
    builds = " `build` returns a `click.Command`." if kind.makes is None else ""
    return f"What {made}.{builds} Owned by {OWNERS[kind]}. Offered by {'; '.join(links)}."


def _module(name: str) -> Iterator[str]:
    """Yield a module's text, and each public thing in it."""
    tree = _tree(name)
    yield f"### `{name if name.startswith(tuple(SOURCES)) else f'vlmkit.{name}'}`"
    yield _described(ast.get_docstring(tree) or "")
    yield _from_elsewhere(tree)
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if name in ONLY and getattr(node, "name", "") not in ONLY[name]:
            continue
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield from _public(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and _is_text(after):
            name, _, value = ast.unparse(node).partition(" = ")
            if not name.startswith("_"):
                yield f"#### `{name}`"
                yield f"`{value}`" if len(value) <= MAX_VALUE_CHARS else ""
                yield _described(inspect.cleandoc(after.value.value))


def _tree(name: str) -> ast.Module:
    source = next((path for each, path in SOURCES.items() if name.startswith(each)), SOURCE)
    tree = ast.parse((source / f"{name.replace('.', '/')}.py").read_text())
    for node in ast.walk(tree):
        for part in ("annotation", "returns"):
            text = getattr(getattr(node, part, None), "value", None)
            if isinstance(text, str):  # the name of what is defined later, or imported for types
                setattr(node, part, ast.parse(text, mode="eval").body)
    return tree


def _public(node: ast.ClassDef | ast.FunctionDef) -> Iterator[str]:
    """Yield what is said of a class or a function."""
    if isinstance(node, ast.ClassDef):
        yield from _class(node)
    else:
        yield f"#### `{_signature(node)}`"
        yield _described(ast.get_docstring(node) or "")


def _from_elsewhere(tree: ast.Module) -> str:
    """Return where a module's names of vlmkit come from, for who writes the same."""
    blocks = [tree, *(node for node in tree.body if isinstance(node, ast.If))]  # of TYPE_CHECKING
    found = [
        f"`{alias.name}` of `{node.module}`"
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith(("vlmkit.", *SOURCES))
        for alias in node.names
        if not alias.name.startswith("_") and alias.name[0].isupper()
    ]
    return f"From elsewhere: {', '.join(found)}." if found else ""


def _is_text(node: ast.stmt | None) -> bool:
    is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_constant and isinstance(node.value.value, str)


def _class(node: ast.ClassDef) -> Iterator[str]:
    bases = [ast.unparse(base) for base in node.bases]
    parents = [base for base in bases if base not in ("Protocol", "Struct", "msgspec.Struct")]
    yield f"#### `{node.name}{'(' + ', '.join(parents) + ')' if parents else ''}`"
    text = ast.get_docstring(node) or ""
    yield _described(text, dict(_fields(node)), dict(_types_of_init(node)))
    for part in node.body:
        is_method = isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_method and (part.name[0] != "_" or part.name == "__len__"):
            text = _described(ast.get_docstring(part) or "")
            yield f"- **`{_signature(part)}`** {_indented(text)}"


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield the fields of a class, and their types and defaults."""
    for part in node.body:
        is_field = isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
        if is_field and not part.target.id.startswith("_"):
            default = _default(part.value)
            yield part.target.id, f"{ast.unparse(part.annotation)}{default}"


def _types_of_init(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield what ``__init__`` takes, and what it and the class set, with types where stated."""
    inits = [part for part in node.body if getattr(part, "name", "") == "__init__"]
    found = dict(pair for init in inits for pair in _types_of_arguments(init.args))
    for part in [*node.body, *(part for init in inits for part in init.body)]:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Attribute):
            found[part.target.attr] = ast.unparse(part.annotation)
        elif isinstance(part, ast.Assign) and isinstance(part.value, ast.Constant | ast.Name):
            is_name = isinstance(part.value, ast.Name)
            kind = found.get(part.value.id) if is_name else type(part.value.value).__name__
            names = (getattr(each, "attr", getattr(each, "id", "")) for each in part.targets)
            found |= {name: kind.partition(" = ")[0] for name in names if kind}
    yield from found.items()


def _types_of_arguments(arguments: ast.arguments) -> Iterator[tuple[str, str]]:
    """Yield the names of arguments, and their types and defaults."""
    by_place = [*arguments.posonlyargs, *arguments.args]
    lacking: list[ast.expr | None] = [None] * (len(by_place) - len(arguments.defaults))
    defaults = [*lacking, *arguments.defaults, *arguments.kw_defaults]
    for each, default in zip([*by_place, *arguments.kwonlyargs], defaults, strict=True):
        if each.annotation is not None:
            yield each.arg, f"{ast.unparse(each.annotation)}{_default(default)}"


def _default(value: ast.expr | None) -> str:
    if value is None:
        return ""
    text = ast.unparse(value)
    if text.startswith("field("):
        made = re.search(r"default_factory=(\w+)", text)
        return f" = {made[1]}()" if made else ""
    return "" if text.startswith("_") else f" = {text}"


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return a method's name, what it takes without itself, and what it returns."""
    decorators = {ast.unparse(each) for each in node.decorator_list}
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    if decorators & {"property", "cached_property"}:
        return f"{node.name}{returns.replace(' -> ', ': ')}"
    arguments = ast.unparse(node.args).removeprefix("self").removeprefix("cls").removeprefix(", ")
    if node.name == "__len__":
        return f"len({arguments}){returns}"
    begins = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    return f"{begins}{node.name}({arguments}){returns}"


def _described(
    text: str, fields: dict[str, str] | None = None, types: dict[str, str] | None = None
) -> str:
    """Return a docstring as Markdown, with types.

    Args:
        text: the docstring.
        fields: types of fields; those that the docstring does not name are listed, too.
        types: types of other names.
    """
    paragraphs, listed = [], set()
    for block in text.split("\n\n"):
        title, _, rest = block.partition("\n")
        if title.rstrip(":") not in SECTIONS or not title.endswith(":"):
            paragraphs.append(_prose(block))
            continue
        rows, entries = [], textwrap.dedent(rest)
        for name, said in [("", entries)] if title == "Returns:" else _entries(entries):
            listed.add(name)
            kind = ((types or {}) | (fields or {})).get(name)
            shown = f"{name}: {kind}" if kind else name
            rows.append(f"- `{shown}`: {_prose(said)}" if name else f"- {_prose(said)}")
        word = SECTIONS[title.rstrip(":")]
        paragraphs += [f"{word.capitalize()}:" if word else "", "\n".join(rows)]
    others = [f"- `{name}: {kind}`" for name, kind in (fields or {}).items() if name not in listed]
    return "\n\n".join(filter(None, [*paragraphs, "\n".join(others)]))


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names of a section, and what is said of each."""
    for entry in re.split(r"\n(?=\S)", text):
        found = re.match(r"(\*{0,2}\w+): (.*)", entry, re.DOTALL)
        yield (found[1], found[2]) if found else ("", entry)


def _prose(text: str) -> str:
    """Return text in one line for each paragraph, with the marks of Markdown."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text.replace("``", "`"))
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _indented(text: str) -> str:
    """Return text as what belongs to an item of a list."""
    first, *others = text.split("\n")
    return "\n".join([first, *(f"  {line}" if line else "" for line in others)])


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
