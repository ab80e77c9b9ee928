"""``quick`` finds the tests nearest to a change by imports, runs them in time and lists them."""

import subprocess
import textwrap
import time

import pytest

from quick import __main__ as quick
from quick.choice import Chosen, choose
from quick.imports import distance, importers

CORE, ONE = "packages/vlmkit-core", "plugins/vlmkit-one"
LOW = f"{CORE}/src/vlmkit/low.py"
FILES = {
    f"{CORE}/src/vlmkit/__init__.py": "",
    LOW: "value = 1",
    f"{CORE}/src/vlmkit/high.py": "def late():\n    from vlmkit.low import value",
    f"{CORE}/src/vlmkit/table.json": "{}",
    f"{CORE}/src/vlmkit/reads.py": "FILE = 'table.json'",
    f"{CORE}/tests/test_low.py": "from vlmkit import low\ndef test_it(): assert low.value",
    f"{CORE}/tests/test_patched.py": "PLACE = 'vlmkit.low.value'\ndef test_it(): pass",
    f"{CORE}/tests/test_reads.py": "import vlmkit.reads\ndef test_it(): pass",
    f"{ONE}/src/vlmkit_one/__init__.py": "",
    f"{ONE}/tests/test_one.py": "from vlmkit.low import value\ndef test_it(): pass",
    f"{ONE}/tests/helper.py": "import vlmkit.high",
    f"{ONE}/tests/test_far.py": "from helper import high\ndef test_it(): pass",
    f"{ONE}/tests/conftest.py": "",
    "docs/page.md": "Words.",
    "tests/test_pages.py": "PAGES = 'docs'\ndef test_it(): pass",
}


@pytest.fixture
def root(tmp_path):
    """A checkout of a core and a plugin."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    return tmp_path


def paths(root, *changed):
    return [chosen.path for chosen in choose(root, changed)]


def test_the_nearest_tests_come_first_then_those_of_the_same_distribution(root):
    assert choose(root, [LOW]) == [
        Chosen(1, False, False, f"{CORE}/tests/test_low.py"),
        Chosen(1, False, True, f"{CORE}/tests/test_patched.py"),
        Chosen(1, True, True, f"{ONE}/tests/test_one.py"),
        Chosen(3, True, True, f"{ONE}/tests/test_far.py"),
    ]


def test_a_changed_test_comes_first(root):
    far = f"{ONE}/tests/test_far.py"
    assert paths(root, LOW, far)[0] == far
    assert paths(root, far) == [far]


def test_a_changed_helper_selects_the_tests_that_import_it(root):
    assert paths(root, f"{ONE}/tests/helper.py") == [f"{ONE}/tests/test_far.py"]
    both = [f"{ONE}/tests/test_far.py", f"{ONE}/tests/test_one.py"]
    assert paths(root, f"{ONE}/tests/conftest.py") == both


def test_a_file_without_importers_selects_tests_that_mention_it_or_its_folder(root):
    assert paths(root, f"{CORE}/src/vlmkit/table.json") == [f"{CORE}/tests/test_reads.py"]
    assert paths(root, "docs/page.md") == ["tests/test_pages.py"]
    assert paths(root, "other/page.md") == []


def test_a_changed_package_init_selects_importers_of_its_modules(root):
    steps = distance(importers(root), {f"{CORE}/src/vlmkit/__init__.py"})
    assert steps[LOW] == 1
    assert steps[f"{CORE}/tests/test_reads.py"] == 2


ENDS_THE_TIME = """
import os

def test_first():
    os.environ["QUICK_UNTIL"] = "0"

def test_second():
    raise AssertionError
"""


def test_no_test_starts_after_the_time_limit(root):
    ends, fails = "tests/test_ends.py", f"{CORE}/tests/test_low.py"
    (root / ends).write_text(ENDS_THE_TIME)
    (root / fails).write_text("def test_it(): assert False")
    numbers = quick.run(root, [ends, fails], time.time() + 600)
    assert numbers == {"ran": {ends: 1, fails: 1}, "late": {ends: 1}, "failed": {fails: 1}}


def test_a_test_that_exceeds_the_time_limit_is_interrupted(root):
    (root / "tests/test_hangs.py").write_text("def test_it():\n    while True: pass\n")
    numbers = quick.run(root, ["tests/test_hangs.py"], time.time() + 5)
    assert numbers["failed"] == {}


def test_the_summary_lists_what_ran_and_what_did_not():
    chosen = [Chosen(steps, False, False, f"test_{steps}.py") for steps in range(4)]
    chosen += [Chosen(5, False, False, f"test_far_{number}.py") for number in range(12)]
    numbers = {"ran": {"test_0.py": 30, "test_1.py": 4}, "late": {"test_1.py": 2, "test_2.py": 9}}
    lines = quick.in_words(chosen, numbers, 51.4)
    assert lines[:7] == [
        "Ran 34 tests in 51 s, the nearest to the change first.",
        "Whole files: 1 (1 that change or mention it)",
        "Parts of files: 1 (1 that import it)",
        "  test_1.py, without 2 tests",
        "Left out for lack of time: 14 (1 through one other, 13 farther away)",
        "  test_2.py",
        "  test_3.py",
    ]
    assert lines[-3:] == [
        "  test_far_7.py",
        "  and 4 more",
        "Tests marked slow or gpu were left out, too. `nox -s tests` runs the suite.",
    ]


def test_a_name_of_no_file_is_a_usage_error(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["quick", "no/such.py"])
    with pytest.raises(SystemExit) as caught:
        quick.main()
    assert caught.value.code == 2
    assert "'no/such.py' is no file of this checkout" in capsys.readouterr().err


def test_files_that_differ_from_main_and_new_files_are_changed(root):
    def git(*words):
        options = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *options, *words], cwd=root, check=True, capture_output=True)

    git("init", "-b", "main")
    git("add", ".")
    git("commit", "-m", "first")
    (root / LOW).write_text("value = 2")
    assert quick.changed_files(root) == [LOW]
    git("switch", "-c", "other")
    git("commit", "-a", "-m", "second")
    (root / "new.py").touch()
    assert quick.changed_files(root) == ["new.py", LOW]
