"""Attack every declared field of a server for some minutes: ``python -m attack --minutes 10``.

Prints a table of what each field costs and ends with code 1 after a breach.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from pathlib import Path

from attack import judge
from attack.bodies import MODEL, Bodies, store
from attack.campaign import Campaign, Found, Row
from attack.declared import Document
from attack.growths import lacks_meaning
from attack.served import document, target
from attack.watchers import Watchers

PER_FIELD, PER_OPERATION = 8, 100


def line(row: Row) -> str:
    """Return a line of the table."""
    sizes = f"{row.points[0].size}..{row.points[-1].size}"
    statuses = "/".join(map(str, sorted({point.status for point in row.points})))
    peak = max(point.cost.peak_bytes for point in row.points) / 2**20
    cpu = f"{row.worst.cost.cpu_s:.2f} s"
    power = f"{judge.slope(row.points):.1f}"
    return judge.row(
        [row.field.place, row.shape, sizes, statuses, cpu, f"{peak:.0f} MiB", power, row.verdict]
    )


def report(found: Found, seen: object, top: int) -> None:
    """Print the findings."""
    rows = sorted(found.rows, key=lambda row: row.worst.cost.cpu_s, reverse=True)
    print(judge.row(["field", "shape", "sizes", "status", "CPU", "memory", "slope", "verdict"]))
    for row in rows[:top]:
        print(line(row))
    print(f"{len(rows)} curves, statuses {dict(sorted(found.statuses.items()))}")
    print(f"{found.num_unreached} of {found.num_fields} fields accept no sample")
    print(seen)
    for text, count in sorted(found.breaches.items()):
        print(f"BREACH ({count}x) {text}")


def main() -> int:
    """Attack; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--fields", default="", help="a pattern of the fields that are attacked")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--top", type=int, default=100_000, help="rows of the table that are printed"
    )
    parser.add_argument(
        "--every-shape", action="store_true", help="probe every shape of each field"
    )
    parser.add_argument("--set", action="append", default=[], help="a setting of the server")
    parser.add_argument("--model", default=MODEL, help="that is asked in place of the mock")
    options = parser.parse_args()
    settings = [word for each in options.set for word in ("--set", each)]
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        target(Path(folder), *settings, model=options.model) as server,
    ):
        known = Document(document(server))

        def restore() -> dict[str, str]:
            return store(lambda sent: json.loads(server.send(sent).content))

        bodies = Bodies(known, restore(), options.model)
        fields = [f for f in known.fields() if re.search(options.fields, f.place)]
        campaign = Campaign(server, bodies, fields, options.seed, restore)
        for field in filter(lacks_meaning, fields):
            campaign.found.add(field.place, "has no generator (attack.growths.MEANINGS)")
        watchers = Watchers(server)
        campaign.reach()
        before_bytes = server.memory_bytes()
        campaign.mutate(PER_FIELD, PER_OPERATION)
        print(f"mutated for {time.monotonic() - started:.0f} s", flush=True)
        until = started + options.minutes * 60
        for field in campaign.curves(until, every_shape=options.every_shape):
            campaign.found.add(field.place, "was not measured: the time was over")
        print(f"measured until {time.monotonic() - started:.0f} s", flush=True)
        seen = watchers.close()
        for text in seen.breaches():
            campaign.found.add("beside", text)
        kept = campaign.settle(before_bytes)
        campaign.read_log()
        report(campaign.found, seen, options.top)
        print(f"{kept / 2**20:.0f} MiB more than before, {time.monotonic() - started:.0f} s")
    return 1 if campaign.found.breaches else 0


if __name__ == "__main__":
    sys.exit(main())
