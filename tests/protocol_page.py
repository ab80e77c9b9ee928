"""Writes ``docs/reference/protocol-cases.md``: cases of other servers' tests, and their verdicts.

``nox -s reference`` renews it; a test fails when it is out of date.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from protocol import llama_cpp, vllm
from protocol.case import Case

PATH = Path(__file__).parents[1] / "docs/reference/protocol-cases.md"
CASES: Mapping[str, Sequence[Case]] = {"llama.cpp": llama_cpp.CASES, "vLLM": vllm.CASES}
WHERE = {
    "llama.cpp": "`tools/server/tests/unit` of ggml-org/llama.cpp.",
    "vLLM": "`tests/entrypoints` of vllm-project/vllm.",
}


def page() -> str:
    """Return the page."""
    counts = ", ".join(
        f"{len(cases)} of {project} ({sum(c.verdict == 'passes' for c in cases)} pass)"
        for project, cases in CASES.items()
    )
    head = f"""# Protocol cases

What public tests of llama.cpp's and vLLM's servers hold of requests and answers, sent to this
server: {counts}. The requests are written anew, and
`tests/test_protocol_cases.py` sends them to server processes. Made by `nox -s reference`.

- *passes*: what the test holds is true here. Tests of errors pass when the request is refused.
- *rejected*: an error that names the field or the route, in its message or its `param`.
- *answered otherwise*: the request is taken, and something in the answer is not what the test
  expects."""
    return "\n\n".join([head, *_sections()]) + "\n"


def _sections() -> Iterator[str]:
    for project, cases in CASES.items():
        lines = "\n".join(_line(case) for case in cases)
        head = f"## {project}\n\nIn {WHERE[project]}"
        yield f"{head}\n\n| test | case | verdict |\n|---|---|---|\n{lines}"


def _line(case: Case) -> str:
    file, _, test = case.source.partition("::")
    return f"| `{file}`: `{test}` | {_cell(case.name)} | {_cell(case.verdict)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PATH.write_text(page())
