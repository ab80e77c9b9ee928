"""Prints how many mutants of real components the contracts detect, for each protocol.

    python -m mutants --sample 200
    python -m mutants --protocol engine --sample 0
    python -m mutants --protocol engine --sample 30 --skip 100

A mutant is detected if a test of the contract fails, or does not end. The score counts mutants of
lines that the contract reaches, without those that ``justified.toml`` explains. The sample has the
mutants with the least keys, after those that ``--skip`` leaves out. So it is the same in each run,
and nearly the same after a change of the sources. 0 stands for all mutants. Survivors are printed,
with their keys.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from mutants.operators import Mutant, mutants_of
from mutants.subjects import ROOT, SUBJECTS, Subject

JUSTIFIED = Path(__file__).with_name("justified.toml")
NUM_PROCESSES = os.cpu_count() or 1
COLUMNS = ("protocol", "mutants", "not reached", "tried", "justified", "detected", "score")


class Trial(NamedTuple):
    """One mutant, and what became of it.

    Attributes:
        file: the mutated file.
        mutant: the mutant.
        is_detected: whether the tests failed.
    """

    file: Path
    mutant: Mutant
    is_detected: bool


class Outcome(NamedTuple):
    """What became of the mutants of one subject.

    Attributes:
        subject: the subject.
        num_mutants: all that exist.
        num_unreached: those on lines that no test reaches.
        num_justified: those in the sample that are explained.
        trials: those that were tried.
    """

    subject: Subject
    num_mutants: int
    num_unreached: int
    num_justified: int
    trials: list[Trial]

    @property
    def num_detected(self) -> int:
        """The mutants that a test detects."""
        return sum(trial.is_detected for trial in self.trials)

    def row(self) -> tuple[str, ...]:
        """Return the cells of a table."""
        score = f"{100 * self.num_detected / len(self.trials):.0f} %" if self.trials else ""
        counts = (self.num_mutants, self.num_unreached, len(self.trials), self.num_justified)
        return (self.subject.protocol, *map(str, counts), str(self.num_detected), score)


def justified() -> set[str]:
    """Return the keys of mutants that are explained."""
    groups = [each for found in tomllib.loads(JUSTIFIED.read_text()).values() for each in found]
    return {mutant.split()[0] for group in groups for mutant in group["mutants"]}


def command(*arguments: str) -> list[str]:
    """Return the command of a trial."""
    return [sys.executable, "-m", "mutants.trial", *arguments]


def run(words: list[str], timeout_s: float | None = None) -> bool:
    """Run a trial; whether its tests pass in time."""
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return False
    if process.returncode > 3:
        print(output.decode(errors="replace")[-2000:], file=sys.stderr)
    return process.returncode == 0


def cpu_seconds() -> float:
    """Return the CPU time of all ended processes of this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def reached_lines(subject: Subject, folder: Path) -> tuple[Mapping[str, list[int]], float]:
    """Return the lines that the tests reach by file, and the CPU seconds that they take."""
    target = folder / "reached.json"
    started = cpu_seconds()
    names = ":".join(map(str, subject.files()))
    if not run(command(names, "--reached", str(target), *subject.tests)):
        raise SystemExit(f"the contract of the {subject.protocol} fails without a mutant")
    return json.loads(target.read_text()), cpu_seconds() - started


def print_survivor(trial: Trial) -> None:
    """Print a mutant if no test detects it."""
    if not trial.is_detected:
        mutant, file = trial.mutant, trial.file.relative_to(ROOT)
        before, after = (text.replace("\n", " ; ") for text in (mutant.before, mutant.after))
        print(
            f"{mutant.key} {file}:{mutant.line} {mutant.function}\n"
            f"    {before[:150]}\n    {after[:150]}",
            flush=True,
        )


def outcome(
    subject: Subject, num_sampled: int, known: Set[str], *, num_skipped: int = 0
) -> Outcome:
    """Try mutants of one subject."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reached, duration_s = reached_lines(subject, folder)
        found = [
            (file, mutant)
            for file in subject.files()
            for mutant in mutants_of(file.read_text())
            if mutant.function not in subject.without
        ]
        lines = {file: set(reached.get(str(file), ())) for file in subject.files()}
        usable = [(file, mutant) for file, mutant in found if mutant.line in lines[file]]
        usable.sort(key=lambda each: each[1].key)  # a digest: any part is as good as another
        chosen = usable[num_skipped : num_skipped + (num_sampled or len(usable))]
        tried = [(file, mutant) for file, mutant in chosen if mutant.key not in known]

        def attempt(place: int) -> Trial:
            file, mutant = tried[place]
            source = folder / f"{place}.py"
            source.write_text(mutant.source)
            # A trial without its tracing takes less; the wall clock only ends one that waits.
            words = command(str(file), str(source), str(30 + int(duration_s)), *subject.tests)
            trial = Trial(file, mutant, not run(words, 600 + 10 * duration_s))
            print_survivor(trial)
            return trial

        with ThreadPoolExecutor(NUM_PROCESSES) as threads:
            trials = list(threads.map(attempt, range(len(tried))))
    num_justified = len(chosen) - len(tried)
    return Outcome(subject, len(found), len(found) - len(usable), num_justified, trials)


def main() -> None:
    """Print the survivors and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=200, help="mutants in all; 0: every one")
    parser.add_argument("--skip", type=int, default=0, help="mutants of each protocol before these")
    parser.add_argument("--protocol", choices=[each.protocol for each in SUBJECTS])
    args = parser.parse_args()
    subjects = [each for each in SUBJECTS if args.protocol in (None, each.protocol)]
    known = justified()
    each = -(-args.sample // len(subjects))
    rows = []
    for subject in subjects:
        found = outcome(subject, each, known, num_skipped=args.skip)
        rows.append(found.row())
    for row in (COLUMNS, ("---",) * len(COLUMNS), *rows):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
