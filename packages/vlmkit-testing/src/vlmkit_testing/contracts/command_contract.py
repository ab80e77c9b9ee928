"""What every command that a plugin adds to the command line must do.

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
    """A process that has ended.

    Attributes:
        code: its exit code.
        out: its standard output.
        err: its standard error.
        modules: the packages that it imported.
    """

    code: int
    out: str
    err: str
    modules: frozenset[str]


class CommandContract:
    """The contract of a command: inherit it, set ``name``, and run pytest.

    Attributes:
        name: the command, without ``vlmkit``.
        timeout_s: the longest time that a tried call may take.
    """

    name = ""
    timeout_s = 120.0

    def environ(self) -> Mapping[str, str]:
        """Return variables to add to the environment, such as ``VLMKIT_PLUGINS``."""
        return {}

    def works(self) -> Seq[Seq[str]]:
        """Return arguments with which it succeeds, without ``--json``."""
        return ()

    def fails(self) -> Seq[Seq[str]]:
        """Return valid arguments with which it fails for a known reason."""
        return ()

    # Help

    def test_it_is_listed_with_what_it_does(self) -> None:
        """The list shows a line about it, without building it."""
        listed = self._run("--help", command=False)
        rows = [line.split(maxsplit=1) for line in listed.out.splitlines()]
        assert listed.code == SUCCEEDED
        assert [row for row in rows if row[:1] == [self.name] and len(row) == 2]

    @pytest.mark.parametrize("option", ["--help", "-h"])
    def test_its_help_says_what_it_does(self, option: str) -> None:
        """Standard output has its usage, a sentence and its options, and nothing else."""
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
        """``--help`` is fast: it imports no tensor library."""
        assert not sorted(self._run("--help").modules & HEAVY)

    # Exit codes and errors

    def test_misuse_exits_with_code_2(self) -> None:
        """Standard error has an explanation."""
        ran = self._run(NO_OPTION)
        assert (ran.code, ran.out) == (MISUSED, "")
        assert "error:" in ran.err.lower()
        assert "Traceback" not in ran.err
        if self._needs_arguments(self._run("--help").out):
            bare = self._run()
            assert (bare.code, bare.out) == (MISUSED, "")
            assert "Traceback" not in bare.err

    def test_success_exits_with_code_0(self) -> None:
        """The output has nothing that reads like a failure."""
        for arguments in self._those(self.works(), "works"):
            ran = self._run(*arguments)
            assert ran.code == SUCCEEDED, ran.err
            assert "Traceback" not in ran.err

    def test_a_failure_is_one_sentence_on_standard_error(self) -> None:
        """The exit code is not 0, and the output has nothing that reads like success."""
        for arguments in self._those(self.fails(), "fails"):
            ran = self._run(*arguments)
            assert ran.code in (FAILED, MISUSED, ENGINE_FAILED)
            assert not ran.out
            _check_error_text(ran.err)

    # JSON

    def test_json_stays_json(self) -> None:
        """With ``--json``, standard output is one document; on failure it is empty."""
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
        """Return whether its usage requires arguments."""
        words = usage.partition("\n")[0].partition("[OPTIONS]")[2].split()
        return any(not word.startswith("[") for word in words)

    def _those(self, arguments: Seq[Seq[str]], method: str) -> Seq[Seq[str]]:
        if not arguments:
            pytest.skip(f"override {method}() to run this test")
        return arguments


def _check_json(out: str) -> None:
    try:
        json.loads(out, parse_constant=_no_constant)
    except ValueError:
        pytest.fail(f"this is no JSON: {out[:200]!r}")


def _no_constant(name: str) -> None:
    """Refuse ``NaN`` and ``Infinity``, which Python writes and JSON does not have."""
    raise ValueError(name)


def _check_error_text(err: str) -> None:
    """Check that the last output is an error of one sentence, with at most a hint."""
    assert "Traceback" not in err
    assert "unexpected" not in err
    lines = err.strip().splitlines()
    told = [line for line in lines if line.startswith(("error: ", "Error: "))]
    assert len(told) == 1, err
    assert told[0].partition(": ")[2].strip()
    behind = lines[lines.index(told[0]) + 1 :]
    assert all(line.startswith("hint: ") for line in behind), err
