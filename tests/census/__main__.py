"""Runs the trials, one process for each family, and writes the page of their results."""

import argparse
import json
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from census import child
from census.record import ENGINES, Finding, Record

WALL_S = 900
PRELOADED = ["census.trial", "census.child"]


def main() -> None:
    """Try families without a record, or the named ones; then write the page."""
    options = _arguments()
    options.records.mkdir(parents=True, exist_ok=True)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(PRELOADED)
    from census import families, page

    for name in options.names or families.all_types()[options.part :: options.parts]:
        known = read(options.records, name) if options.resume or options.names else {}
        engines = [e for e in options.engine if options.names or not any(e in key for key in known)]
        if not engines:
            continue
        began = time.monotonic()
        found = _in_a_process(processes, name, engines, options)
        _write(options.records, name, known | found)
        print(f"{time.monotonic() - began:5.1f} s  {name}: {told(found)}", flush=True)
    if options.page:
        page.write({name: read(options.records, name) for name in families.all_types()})


def _arguments() -> Any:
    parser = argparse.ArgumentParser(prog="census", description=__doc__)
    parser.add_argument("records", type=Path, help="folder that keeps what was found")
    parser.add_argument("names", nargs="*", help="model types to try, again if need be; else all")
    parser.add_argument("--engine", action="append", choices=ENGINES, help="both if not said")
    parser.add_argument("--part", type=int, default=0, help="of the families, with --parts")
    parser.add_argument("--parts", type=int, default=1, help="how many run side by side")
    parser.add_argument("--no-export", action="store_true", help="make no graphs: that is costly")
    parser.add_argument("--resume", action="store_true", help="keep what was found before")
    parser.add_argument("--page", action="store_true", help="write the page of all that was found")
    options = parser.parse_args()
    options.engine = options.engine or list(ENGINES)
    return options


def told(found: Record) -> str:
    """Return findings on a line."""
    return "; ".join(f"{k} {f.verdict} {f.reason}".strip() for k, f in found.items())


def read(records: Path, name: str) -> Record:
    """Return the recorded results of a family; nothing if it was not tried."""
    file = records / f"{name}.json"
    stored = json.loads(file.read_text()) if file.exists() else {}
    return {key: Finding(**finding) for key, finding in stored.items()}


def _write(records: Path, name: str, found: Record) -> None:
    content = json.dumps({key: asdict(finding) for key, finding in found.items()}, indent=1)
    (records / f"{name}.json").write_text(content)


def _in_a_process(processes: Any, name: str, engines: Sequence[str], options: Any) -> Record:
    """Try a family in a process of its own, so a crash is a result."""
    reader, writer = processes.Pipe(duplex=False)
    folder = Path(tempfile.mkdtemp(prefix="census-"))
    process = processes.Process(
        target=child.run,
        args=(name, engines, folder / name, options.records, writer),
        kwargs={"exports": not options.no_export},
    )
    process.start()
    writer.close()
    gone = "the trial takes too long"
    try:
        if reader.poll(WALL_S):
            found: Record = reader.recv()
            return found
    except EOFError:
        gone = "the process of the trial ended"
    finally:
        process.kill()
        process.join()
        shutil.rmtree(folder, ignore_errors=True)
    return {f"{engine} text": Finding("fails", gone) for engine in engines}


if __name__ == "__main__":
    main()
