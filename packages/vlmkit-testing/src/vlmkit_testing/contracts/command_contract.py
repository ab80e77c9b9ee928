"""What every command must do that a plugin adds to the command line.

Each test runs ``vlmkit`` in a process of its own, as a user does: the plugin must be installed, or
named in ``VLMKIT_PLUGINS`` by :meth:`CommandContract.environ`.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass
from pathlib import Path

import pytest

HEAVY = frozenset(
    {
        "PIL",
        "huggingface_hub",
        "jax",
        "litestar",
        "numpy",
        "onnx",
        "onnxruntime",
        "pandas",
        "scipy",
        "tensorflow",
        "tokenizers",
        "torch",
        "transformers",
        "uvicorn",
    }
)
"""What takes long to import; who only reads a help does not need it."""

RUN = """
import sys
from pathlib import Path
from vlmkit.cli import run
seen = Path(sys.argv[1])
try:
    sys.exit(run(sys.argv[2:]))
finally:
    seen.write_text("\\n".join(sys.modules))
"""
SUCCEEDED, FAILED, MISUSED, ENGINE_FAILED = 0, 1, 2, 3
NO_OPTION = "--no-such-option-anywhere"


@dataclass(frozen=True)
class Ran:
    """A process that is over.

    Attributes:
        code: its exit code.
        out: what it wrote to standard output.
        err: and to standard error.
        modules: the packages that it imported.
    """

    code: int
    out: str
    err: str
    modules: frozenset[str]


class CommandContract:
    """Inherit, say what it is called, and run pytest.

    Attributes:
        name: of the command, behind ``vlmkit``.
        timeout_s: the most seconds that any of the tried calls takes.
    """

    name = ""
    timeout_s = 120.0

    def environ(self) -> Mapping[str, str]:
        """Return what is added to the environment, such as ``VLMKIT_PLUGINS``."""
        return {}

    def works(self) -> Seq[Seq[str]]:
        """Return arguments with which it does what it is for; without ``--json``."""
        return ()

    def fails(self) -> Seq[Seq[str]]:
        """Return arguments that are taken, and with which it cannot do it, for a known reason."""
        return ()

    # Help

    def test_it_is_listed_with_what_it_does(self) -> None:
        """In one line, for which it is not built."""
        listed = self._run("--help", command=False)
        rows = [line.split(maxsplit=1) for line in listed.out.splitlines()]
        assert listed.code == SUCCEEDED
        assert [row for row in rows if row[:1] == [self.name] and len(row) == 2]

    @pytest.mark.parametrize("option", ["--help", "-h"])
    def test_its_help_says_what_it_does(self, option: str) -> None:
        """And nothing else, on standard output: how it is used, in a sentence, and its options."""
        ran = self._run(option)
        assert ran.code == SUCCEEDED
        assert ran.out.startswith(f"Usage: vlmkit {self.name}")
        assert not ran.err
        usage, _, rest = ran.out.partition("\n\n")
        assert usage
        said, _, options = rest.partition("Options:\n")
        assert said.strip()
        assert "--help" in options

    def test_its_help_imports_nothing_heavy(self) -> None:
        """Who looks for an option does not wait for a tensor library."""
        assert not sorted(self._run("--help").modules & HEAVY)

    # Exit codes and errors

    def test_a_misuse_is_told_as_one(self) -> None:
        """By exit code 2, and in words on standard error."""
        ran = self._run(NO_OPTION)
        assert (ran.code, ran.out) == (MISUSED, "")
        assert "error:" in ran.err.lower()
        assert "Traceback" not in ran.err
        if self._needs_arguments(self._run("--help").out):
            bare = self._run()
            assert (bare.code, bare.out) == (MISUSED, "")
            assert "Traceback" not in bare.err

    def test_what_works_ends_with_zero(self) -> None:
        """And with nothing that reads as a failure."""
        for arguments in self._those(self.works(), "works"):
            ran = self._run(*arguments)
            assert ran.code == SUCCEEDED, ran.err
            assert "Traceback" not in ran.err

    def test_what_fails_is_told_in_a_sentence(self) -> None:
        """On standard error, with an exit code that says so; nothing reads as if it had worked."""
        for arguments in self._those(self.fails(), "fails"):
            ran = self._run(*arguments)
            assert ran.code in (FAILED, MISUSED, ENGINE_FAILED)
            assert not ran.out
            _check_told(ran.err)

    # JSON

    def test_json_stays_json(self) -> None:
        """One document on standard output and nothing beside it; none where it fails."""
        if "--json" not in self._run("--help").out:
            pytest.skip("it has no --json")
        for arguments in self._those(self.works(), "works"):
            ran = self._run(*arguments, "--json")
            assert ran.code == SUCCEEDED, ran.err
            _check_json(ran.out)
        for arguments in self.fails():
            ran = self._run(*arguments, "--json")
            assert ran.code != SUCCEEDED
            if ran.out:
                _check_json(ran.out)

    # Helpers

    def _run(self, *arguments: str, command: bool = True) -> Ran:
        """Run the command with some arguments, and nothing to read."""
        with tempfile.TemporaryDirectory() as folder:
            seen = Path(folder) / "modules"
            named = (self.name,) if command else ()
            done = subprocess.run(  # noqa: S603 - the tests' own Python
                [sys.executable, "-c", RUN, str(seen), *named, *arguments],
                env={**os.environ, "PYTHONIOENCODING": "utf-8", **self.environ()},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                timeout=self.timeout_s,
                check=False,
            )
            modules = seen.read_text().split() if seen.exists() else []
        roots = frozenset(module.partition(".")[0] for module in modules)
        return Ran(done.returncode, done.stdout, done.stderr, roots)

    def _needs_arguments(self, usage: str) -> bool:
        """Tell by its usage whether it can do nothing without arguments."""
        words = usage.partition("\n")[0].partition("[OPTIONS]")[2].split()
        return any(not word.startswith("[") for word in words)

    def _those(self, arguments: Seq[Seq[str]], method: str) -> Seq[Seq[str]]:
        if not arguments:
            pytest.skip(f"nobody said in {method}() how")
        return arguments


def _check_json(out: str) -> None:
    try:
        json.loads(out)
    except ValueError:
        pytest.fail(f"this is no JSON: {out[:200]!r}")


def _check_told(err: str) -> None:
    """Check that the last thing that was written is an error in a sentence, with at most a hint."""
    assert "Traceback" not in err
    assert "unexpected" not in err
    lines = err.strip().splitlines()
    told = [line for line in lines if line.startswith(("error: ", "Error: "))]
    assert len(told) == 1, err
    assert told[0].partition(": ")[2].strip()
    behind = lines[lines.index(told[0]) + 1 :]
    assert all(line.startswith("hint: ") for line in behind), err
