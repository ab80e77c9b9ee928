"""Makes the documentation site of the pages in ``docs``, which are written for a forge's file view.

It makes the navigation from the tables of ``docs/README.md``, puts a landing page before it, and
lets links to files outside ``docs`` lead to the repository. It changes no sentence of a page.
"""

import posixpath
import re
import tomllib
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LIST = "README.md"
"""The page that lists all pages."""
DECISIONS = "explanation/adr"
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_PAGE = re.compile(r"\]\(([a-z][^):#]*\.md)\)")
_LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+)((?:#[^)\s]*)?\))")

Entry = str | dict[str, "list[Entry]"]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the navigation, and the address of the repository.

    The theme's own setting for it would let every page ask the forge for stars.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    config.extra["repository"] = project["tool"]["vlmkit"]["repository"]
    config.nav = navigation(Path(config.docs_dir))
    return config


def navigation(docs: Path) -> list[Entry]:
    """Return the sections of the list of pages, each page where it is listed first."""
    _, *sections = _SECTION.split((docs / LIST).read_text(encoding="utf-8"))
    seen = set[str]()
    found: list[Entry] = ["index.md", LIST]
    for title, text in zip(sections[::2], sections[1::2], strict=True):
        pages = [page for page in dict.fromkeys(_PAGE.findall(text)) if page not in seen]
        seen.update(pages)
        entries: list[Entry] = [page for page in pages if not page.startswith(DECISIONS)]
        if len(entries) < len(pages):
            records = sorted(path.name for path in (docs / DECISIONS).glob("[0-9]*.md"))
            names = ["README.md", *records]
            entries.append({"Decisions": [f"{DECISIONS}/{name}" for name in names]})
        found.append({title: entries})
    return found


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the landing page, and move the list of pages from its place."""
    pages = files.get_file_from_path(LIST)
    assert pages is not None
    pages.dest_uri, pages.url = "pages/index.html", "pages/"
    landing = (ROOT / "site" / "landing.md").read_text(encoding="utf-8")
    content = landing.replace("(repository)", f"({config.extra['repository']})")
    files.append(File.generated(config, "index.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Let links to files outside ``docs`` lead to the repository."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def moved(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[2]))
        if path.startswith("docs/"):
            return link[0]
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{link[1]}{config.extra['repository']}/{kind}/main/{path}{link[3]}"

    return _LINK.sub(moved, markdown)
