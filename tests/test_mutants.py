"""The mutants by which the contracts are measured: what changes, and that tests run on it."""

import subprocess
import sys
from pathlib import Path

import pytest

from mutants.__main__ import justified
from mutants.operators import mutants_of
from mutants.subjects import SUBJECTS

ROOT = Path(__file__).parents[1]
SOURCE = '''
def clipped(values: list[int | None], most: int = 3) -> list[int]:
    """Return the values below 3."""
    kept = list(values)
    if len(kept) > most and kept:
        raise ValueError("more than 3 + 1 values")
    self.kept = kept[most:]
    return replaced(kept, most)
'''


def test_the_key_of_a_mutant_depends_on_its_statement_alone():
    moved = SOURCE.replace("    kept = list(values)", "    first = 7\n    kept = list(values)")
    keys = {mutant.key for mutant in mutants_of(SOURCE)}
    assert len(keys) == len(list(mutants_of(SOURCE)))
    assert keys < {mutant.key for mutant in mutants_of(moved)}


@pytest.mark.slow
def test_every_explained_mutant_exists():
    files = {file for subject in SUBJECTS for file in subject.files()}
    keys = {mutant.key for file in files for mutant in mutants_of(file.read_text())}
    assert justified() <= keys


def changes():
    return {(mutant.before, mutant.after) for mutant in mutants_of(SOURCE)}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("len(kept) > most", "len(kept) >= most"),
        ("len(kept) > most and kept", "len(kept) > most or kept"),
        ("list(values)", "values"),
        ("self.kept = kept[most:]", "pass"),
        ("most:", ":"),
        ("replaced(kept, most)", "replaced(most, kept)"),
    ],
)
def test_bounds_updates_copies_and_arguments_are_mutated(before, after):
    assert (before, after) in changes()


def test_annotations_docstrings_and_texts_of_errors_stay():
    for mutant in mutants_of(SOURCE):
        assert "list[int | None]" in mutant.source
        assert "below 3" in mutant.source
        assert "3 + 1 values" in mutant.source


def test_each_mutant_differs_in_one_place():
    sources = [mutant.source for mutant in mutants_of(SOURCE)]
    assert len(set(sources)) == len(sources)


@pytest.mark.parametrize("is_mutated", [False, True])
def test_a_trial_runs_tests_on_the_mutant_and_changes_no_file(tmp_path, is_mutated):
    module = tmp_path / "component.py"
    module.write_text("def double(number):\n    return number + number\n")
    (tmp_path / "test_component.py").write_text(
        "from component import double\n\ndef test_double():\n    assert double(2) == 4\n"
    )
    own = module.read_text()
    source = tmp_path / "mutant"
    source.write_text(next(mutants_of(own)).source if is_mutated else own)
    command = [sys.executable, "-m", "mutants.trial", str(module), str(source), "60", "."]
    environment = {"PYTHONPATH": f"{ROOT / 'tests'}:{tmp_path}", "PATH": ""}
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu:\n    slow:\n")
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert found.returncode == int(is_mutated), found.stdout
    assert module.read_text() == own
