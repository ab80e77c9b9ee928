"""Writes ``docs/reference/families.md`` from the results; a test reads it back."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import transformers

from census import families
from census.record import ENGINES, Finding, Record

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "families.md"
RUNS = "equal"
NOTHING = "-"
UNKNOWN = "?"

_HEAD = """# Families

What each family of transformers {version} does here. This page is made by `nox -s families`: of
every model type that answers in text, a small model with random weights is served, and its greedy
tokens are compared with those that `generate` of transformers chooses, several questions at once
beside each one alone. What is named under *torch* and *ONNX* had equal tokens, and logits equal but
for rounding: *text*, or *pictures*, shown to the family's own processor. ONNX means graphs of
float32 that `vlmkit export` made; a question mark, that none were made in that run.

Who is refused is refused when the model is loaded, by the sentence that stands beside it. A
sentence that begins with *not tried* says why nothing is known: such a model checks itself when it
is loaded, as any other does, and is refused where it would answer otherwise than transformers.

{num_torch} of {num_all} run on torch{as_graphs}.

## Where answers are not those of `generate`

Two families are compared with another reference than `generate` as transformers {version} has it:

{deviations}
"""
DEVIATIONS: Mapping[str, str] = {
    "mllama": "a token that stands before all pictures sees none of them, as in the code of "
    "Llama's authors. In `generate` it attends to every picture behind it, so that a system prompt "
    "depends on them ([why](../explanation/adr/0032-cross-attention-decoders.md)). Where pictures "
    "come first, both agree.",
    "phi4_multimodal": "the image tower is never causal. In `generate` it is, unless a picture of "
    "the call is padded, so that a square picture has other features alone than beside a padded "
    'one; `attn_implementation="eager"` computes what is computed here '
    "([why](../explanation/adr/0033-composite-checkpoints.md)).",
}
"""Families that are held to another reference than ``generate``, and how."""
SECTIONS = {
    "Families that see": families.sees,
    "Families of text": families.reads,
    "Families that hear": families.hears,
}
_COLUMNS = "| family | torch | ONNX | what is refused, and why |\n|---|---|---|---|\n"


@dataclass(frozen=True)
class Line:
    """The statement of the page about a family.

    Attributes:
        runs: the supported inputs, by engine.
        why: the reasons for the unsupported ones.
    """

    runs: Mapping[str, str]
    why: str


def write(found: Mapping[str, Record]) -> None:
    """Write the page.

    Raises:
        ValueError: a family answers wrongly or fails: that is no line of a page.
    """
    lines = {name: _line(record) for name, record in found.items()}
    silent = (NOTHING, UNKNOWN)
    counts = {e: sum(line.runs[e] not in silent for line in lines.values()) for e in ENGINES}
    text = _HEAD.format(
        version=transformers.__version__,
        num_all=len(lines),
        num_torch=counts["torch"],
        as_graphs=f", {counts['onnx']} as graphs" if counts["onnx"] else "",
        deviations=deviations(),
    )
    for title, belongs in SECTIONS.items():
        rows = "".join(_row(name, line) for name, line in lines.items() if belongs(name))
        text += f"\n## {title}\n\n{_COLUMNS}{rows}"
    PAGE.write_text(text)


def deviations() -> str:
    """Return the list of families with a reference other than ``generate``."""
    return "\n".join(f"- `{name}`: {how}" for name, how in DEVIATIONS.items())


def read() -> dict[str, tuple[str, Line]]:
    """Return the section and the line of each family of the page."""
    lines: dict[str, tuple[str, Line]] = {}
    section = ""
    for row in PAGE.read_text().splitlines():
        if row.startswith("## "):
            section = row.removeprefix("## ")
        if not row.startswith("| `"):
            continue
        name, *runs, why = (cell.strip() for cell in row.strip("|").split(" | "))
        name = name.strip("`")
        if name in lines:
            raise ValueError(f"two lines for {name!r}")
        lines[name] = (section, Line(dict(zip(ENGINES, runs, strict=True)), why))
    return lines


def section_of(name: str) -> str:
    """Return where a family belongs."""
    return next(title for title, belongs in SECTIONS.items() if belongs(name))


def _line(record: Record) -> Line:
    runs = {}
    for engine in ENGINES:
        if not any(key.startswith(engine) for key in record):
            runs[engine] = UNKNOWN
            continue
        kinds = [kind for kind in ("text", "pictures") if _runs(record, f"{engine} {kind}")]
        runs[engine] = ", ".join(kinds) or NOTHING
    reasons: dict[str, list[str]] = {}
    for key, finding in record.items():
        if finding.verdict in ("wrong", "fails"):
            raise ValueError(f"{key}: {finding}")
        if finding.verdict != RUNS:
            reasons.setdefault(_sentence(finding), []).append(key)
    whole = len(reasons) == 1 and all(cell in (NOTHING, UNKNOWN) for cell in runs.values())
    why = [text if whole else f"{_places(keys)}: {text}" for text, keys in reasons.items()]
    return Line(runs, "; ".join(why))


def _runs(record: Record, key: str) -> bool:
    return key in record and record[key].verdict == RUNS


def _sentence(finding: Finding) -> str:
    plain = escaped(finding.reason)
    return plain if finding.verdict == "refused" else f"*not tried*: {plain}"


def escaped(reason: str) -> str:
    """Return a sentence as a cell of a table has it."""
    return reason.replace("|", "\\|").replace("<", "\\<")


def _places(keys: list[str]) -> str:
    """Return where a sentence holds: an engine, or one of its columns."""
    shown = []
    for engine, title in zip(ENGINES, ("torch", "ONNX"), strict=True):
        kinds = [key.split()[1] for key in keys if key.startswith(engine)]
        if kinds:
            shown.append(title if "text" in kinds else f"{', '.join(kinds)} on {title}")
    return ", ".join(shown)


def _row(name: str, line: Line) -> str:
    return f"| `{name}` | {' | '.join(line.runs[e] for e in ENGINES)} | {line.why} |\n"
