"""Measures of docstrings, messages, pages and identifiers, each listed by file with its count."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import prose
from structure.found import Areas, Found
from structure.imports import Imports
from structure.project import Module, Project

ALL = "all"
RETIRED = Path(__file__).parents[1] / "retired_words.toml"

Judge = Callable[[prose.Sentence], bool]


def long_public(project: Project, imports: Imports) -> Areas:
    """Count the sentences over 30 words in docstrings of what is public."""
    return _docstrings(project, _is_long, is_public=True)


def long_private(project: Project, imports: Imports) -> Areas:
    """Count the sentences over 30 words in docstrings of what is private."""
    return _docstrings(project, _is_long, is_public=False)


def stacked_public(project: Project, imports: Imports) -> Areas:
    """Count the sentences with four or more relative clauses in docstrings of what is public."""
    return _docstrings(project, _is_stacked, is_public=True)


def stacked_private(project: Project, imports: Imports) -> Areas:
    """Count the sentences with four or more relative clauses in docstrings of what is private."""
    return _docstrings(project, _is_stacked, is_public=False)


def messages(project: Project, imports: Imports) -> Areas:
    """Count the long and the stacked sentences in texts of exceptions and log lines."""
    return _by_file(
        (module.part, module.path, sentence)
        for module in project.modules
        for passage in prose.messages(module.tree)
        for sentence in prose.sentences([passage.text])
        if sentence.is_long or sentence.is_stacked
    )


def long_pages(project: Project, imports: Imports) -> Areas:
    """Count the sentences over 30 words in pages that people write."""
    return _pages(project, _is_long)


def stacked_pages(project: Project, imports: Imports) -> Areas:
    """Count the sentences with four or more relative clauses in pages that people write."""
    return _pages(project, _is_stacked)


def retired_identifiers(project: Project, imports: Imports) -> Areas:
    """Count the names that a file defines, its own included, and that hold a retired word."""
    return _by_file(
        (module.part, module.path, f"{name}: {' '.join(held)}")
        for module in project.modules
        for name, held in sorted(_retired_names(module).items())
    )


def retired_in_docs(project: Project, imports: Imports) -> Areas:
    """Count the retired words in docstrings, messages and pages."""
    texts = [
        (module.part, module.path, passage.text)
        for module in project.modules
        for passage in [*prose.docstrings(module.tree), *prose.messages(module.tree)]
    ]
    texts += [(page.part, page.path, page.text) for page in project.pages]
    return _by_file(
        (part, path, each.word)
        for part, path, text in texts
        for each in prose.retired_in_text(text, _retired())
    )


def _is_long(sentence: prose.Sentence) -> bool:
    return sentence.is_long


def _is_stacked(sentence: prose.Sentence) -> bool:
    return sentence.is_stacked


@cache
def _retired() -> list[prose.Retired]:
    return prose.read_retired(RETIRED)


def _retired_names(module: Module) -> dict[str, list[str]]:
    """Return the names of a module that hold retired words, with the words."""
    own = module.name.rpartition(".")[2]
    defined = {own, *prose.definitions(module.tree)}
    found: dict[str, list[str]] = {}
    for name in {*defined, *prose.variables(module.tree)}:
        held = prose.retired_in_name(name, _retired())
        if name in defined:
            held += prose.retired_in_name(name, _retired(), "definitions")
        if held:
            found[name] = [each.word for each in held]
    return found


def _docstrings(project: Project, judge: Judge, *, is_public: bool) -> Areas:
    return _by_file(
        (module.part, module.path, sentence)
        for module in project.modules
        for passage in prose.docstrings(module.tree)
        if project.public.has(module.name, passage.owner) is is_public
        for sentence in prose.sentences(prose.docstring_paragraphs(passage.text))
        if judge(sentence)
    )


def _pages(project: Project, judge: Judge) -> Areas:
    return _by_file(
        (page.part, page.path, sentence)
        for page in project.pages
        for sentence in prose.sentences(prose.markdown_paragraphs(page.text))
        if judge(sentence)
    )


def _by_file(found: Iterable[tuple[str, str, prose.Sentence | str]]) -> Areas:
    """Count by part; list the files of each, those with most first, and what they have."""
    parts: dict[str, dict[str, list[str]]] = {}
    for part, path, each in found:
        text = each.text if isinstance(each, prose.Sentence) else each
        parts.setdefault(part, {}).setdefault(path, []).append(text)
    areas = {
        part: Found(sum(map(len, files.values())), tuple(_lines(files)))
        for part, files in sorted(parts.items())
    }
    return areas | {ALL: Found(sum(area.number for area in areas.values()), _all_items(areas))}


def _all_items(areas: Areas) -> tuple[str, ...]:
    return tuple(item for area in areas.values() for item in area.items)


def _lines(files: dict[str, list[str]]) -> Iterator[str]:
    for path, texts in sorted(files.items(), key=lambda each: -len(each[1])):
        yield f"{path} ({len(texts)})"
        for text, times in sorted(Counter(texts).items()):
            yield f"    {text}" + (f" ({times} times)" if times > 1 else "")
