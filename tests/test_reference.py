"""The reference of the seams is what the sources say, and leaves none of them out."""

import pkgutil
import re

import fields_page
import seams_page
import vlmkit.ask
import vlmkit.kit
import vlmkit.seams
import vlmkit_server.interfaces
from vlmkit_testing import project


def test_the_pages_are_what_the_sources_say():
    for path, text in seams_page.pages().items():
        assert path.read_text() == text, "renew it: nox -s reference"


def test_the_page_of_fields_is_what_the_table_says():
    assert fields_page.PATH.read_text() == fields_page.page(), "renew it: nox -s reference"


def test_every_seam_is_on_it():
    named = set(re.findall(r"^### `(vlmkit\S*\.\w+)`$", seams_page.seams(), re.MULTILINE))
    seams = {m.name for m in pkgutil.iter_modules(vlmkit.seams.__path__)}
    of_the_server = {m.name for m in pkgutil.iter_modules(vlmkit_server.interfaces.__path__)}
    assert {f"vlmkit.seams.{name}" for name in seams} <= named
    assert {f"vlmkit_server.interfaces.{name}" for name in of_the_server - {"kinds"}} <= named


def test_every_kind_has_its_protocol_its_contract_and_its_example():
    text = seams_page.seams()
    for kind in seams_page.ALL_KINDS:
        section = re.split(r"^## ", text, flags=re.MULTILINE)
        (own,) = [part for part in section if part.startswith(f"{kind.words.capitalize()}\n")]
        assert f"templates/{kind.name})" in own
        assert f"`{kind.hook}`" in own
        assert not kind.contract or kind.contract.rpartition(":")[2] in own
        assert kind.makes is None or f"#### `{kind.makes.__name__}" in own


def test_it_shows_no_private_names_and_no_dunders():
    every = "".join(seams_page.pages().values())
    shown = re.findall(r"^(?:####|- \*\*|- `)[^:(]*", every, re.MULTILINE)
    assert not [line for line in shown if re.search(r"[ `]_", line)]


def test_a_reader_finds_arguments_units_and_errors_of_a_method():
    text = seams_page.seams()
    assert "**`prepare(rows: Seq[Row]) -> Pick`**" in text
    assert "- `rows`: at least one; the logits come in their order." in text
    assert "of a form that this one does not take.\n" in text, "what goes on is of the same item"
    assert "empty where nothing is traced.\n" in text, "what is returned is one item"
    assert "`[num_tokens, hidden]` float" in text


def test_the_page_on_stability_names_the_distributions_whose_names_are_taken():
    page = (seams_page.ROOT / "docs/reference/stability.md").read_text()
    assert all(f"`-{name}`" in page or f"`vlmkit-{name}`" in page for name in project.TAKEN)


def test_every_module_of_values_is_on_their_page():
    text = seams_page.values()
    for package in (vlmkit.ask, vlmkit.kit):
        names = {module.name for module in pkgutil.iter_modules(package.__path__)}
        assert {n for n in names if f"\n### `{package.__name__}.{n}`\n" in text} == names


def test_a_reader_learns_where_a_name_comes_from():
    assert "`ImageLimits` of `vlmkit.settings.images`" in seams_page.seams()


def test_a_program_finds_how_to_load_to_ask_and_what_is_raised():
    text = seams_page.python()
    for name in ("load(", "fetch(", "- **`generate(", "- **`async astream(", "`RequestError"):
        assert name in text
