"""Runs the tests nearest to a change; names of changed files are arguments.

Without names, the change is what ``git`` finds different from the branch ``main`` or else from the
last commit, new files included.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from quick import budget
from quick.choice import Chosen, choose

ROOT = Path(__file__).parents[2]
MOST_FILES = 16
"""Pytest imports all files before it runs the first test."""
LAST_START_S = 15
"""How long before the end the last test starts."""
LAST_WORDS_S = 10
"""How long pytest may take to end when it is interrupted."""
NAMED = 10
"""How many of the files that are left out have their names printed."""
STEPS = ("that change or mention it", "that import it", "through one other", "farther away")

Numbers = dict[str, dict[str, int]]
"""For ``ran``, ``late`` and ``failed``, the numbers of tests by file."""


def main() -> int:
    """Choose and run; return 1 if a test failed."""
    begun = time.time()
    asked = _arguments()
    changed = asked.paths or changed_files(ROOT)
    print("Changed:", *changed or ["nothing"])
    chosen = choose(ROOT, changed)
    if not chosen:
        print("No test imports it or mentions it. `nox -s tests` runs the suite.")
        return 0
    nearest = [each.path for each in chosen[:MOST_FILES]]
    numbers = run(ROOT, nearest, begun + asked.seconds)
    print(*in_words(chosen, numbers, time.time() - begun), sep="\n")
    return 1 if numbers["failed"] else 0


def changed_files(root: Path) -> list[str]:
    """Return what differs from the branch ``main``, or from the last commit where that is it."""
    base = _git(root, "merge-base", "HEAD", "main") or ["HEAD"]
    changed = _git(root, "diff", "--name-only", "--relative", *base)
    return sorted({*changed, *_git(root, "ls-files", "--others", "--exclude-standard")})


def run(root: Path, files: Sequence[str], until: float) -> Numbers:
    """Run pytest on files, two processes side by side; interrupt it when the time is over."""
    options = ["-q", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "--tb=short"]
    options += [
        "--rootdir",
        str(root),
        "-p",
        "quick.budget",
        "-m",
        "not gpu and not slow",
        "-r",
        "fE",
    ]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        settings = {budget.UNTIL: str(until - LAST_START_S), budget.REPORT: str(report)}
        tests = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *files],
            cwd=root,
            env=os.environ | settings | {"PYTHONPATH": path},
        )
        try:
            tests.wait(max(0.0, until - time.time()))
        except subprocess.TimeoutExpired:
            _end(tests)
            if not report.exists():  # it had not begun
                return {"ran": {}, "late": {}, "failed": {}}
        return json.loads(report.read_text())


def _end(tests: "subprocess.Popen[bytes]") -> None:
    """Let pytest print what it found; kill it if it ignores the signal, as in the background."""
    tests.send_signal(signal.SIGINT)
    try:
        tests.wait(LAST_WORDS_S)
    except subprocess.TimeoutExpired:
        tests.kill()
        tests.wait()


def in_words(chosen: Sequence[Chosen], numbers: Numbers, seconds: float) -> list[str]:
    """Return sentences about what ran and what did not."""
    ran, late = numbers["ran"], numbers["late"]
    whole = [each for each in chosen if each.path in ran and each.path not in late]
    partly = [each for each in chosen if each.path in ran and each.path in late]
    left = [each for each in chosen if each.path not in ran]
    lines = [f"Ran {sum(ran.values())} tests in {seconds:.0f} s, the nearest to the change first."]
    lines += _listed("Whole files", whole, [])
    lines += _listed(
        "Parts of files",
        partly,
        [f"{each.path}, without {late[each.path]} tests" for each in partly],
    )
    lines += _listed("Left out for lack of time", left, [each.path for each in left])
    return [*lines, "Tests marked slow or gpu were left out, too. `nox -s tests` runs the suite."]


def _listed(what: str, files: Sequence[Chosen], names: Sequence[str]) -> list[str]:
    """Return a line with numbers of files, and one for each name as far as there is room."""
    if not files:
        return []
    counted = Counter(min(each.steps, len(STEPS) - 1) for each in files)
    numbers = ", ".join(f"{number} {STEPS[steps]}" for steps, number in sorted(counted.items()))
    more = [f"  and {len(names) - NAMED} more"] if len(names) > NAMED else []
    return [f"{what}: {len(files)} ({numbers})", *(f"  {name}" for name in names[:NAMED]), *more]


def _git(root: Path, *words: str) -> list[str]:
    """Return the lines that git prints; none if it fails."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.split("\n")[:-1]


def _file(path: str) -> str:
    """Return the path of a file of the checkout from its root."""
    file = Path(path).resolve()
    if not (file.is_file() and file.is_relative_to(ROOT)):
        raise argparse.ArgumentTypeError(f"{path!r} is no file of this checkout")
    return file.relative_to(ROOT).as_posix()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="quick", description=__doc__)
    parser.add_argument("paths", nargs="*", type=_file, help="changed files")
    parser.add_argument("--seconds", type=float, default=55, help="when to end")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
