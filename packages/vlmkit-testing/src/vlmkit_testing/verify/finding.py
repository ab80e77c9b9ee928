"""The result of one test of a contract, and where its rule is documented."""

from dataclasses import dataclass
from typing import Any, Literal

from vlmkit.plugins.kinds import Kind

MAX_REASON_CHARS = 300
FAILED = "Failed: "
"""What pytest puts before a reason that was given in words."""
PAGE = "docs/reference/interfaces.md"

Outcome = Literal["held", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one test.

    Attributes:
        kind: the kind of the component.
        sentence: the test's name in words.
        outcome: whether it held.
        reason: why it failed or was skipped.
        promise: the sentence in full, as its test has it.
        test: the test of the contract, as pytest calls it in a class that inherits it.
        read: the protocol that says what is expected, and its page.
    """

    kind: str
    sentence: str
    outcome: Outcome
    reason: str = ""
    promise: str = ""
    test: str = ""
    read: str = ""

    def as_text(self) -> str:
        """Return the finding as lines of text."""
        details = ((name, getattr(self, name)) for name in ("promise", "reason", "test", "read"))
        lines = (f"  {name:8}{text}" for name, text in details if text)
        return "\n".join((f"{self.kind}: {self.sentence}", *lines))


def of_the_whole(kind: Kind[Any], reason: str) -> Finding:
    """Return the reason why no test of a contract ran."""
    return Finding(kind.name, "the whole contract", "skipped", reason, read=_read(kind))


def found(kind: Kind[Any], report: Any, promise: str) -> Finding:
    """Return the finding of a test's report.

    Args:
        kind: what was tried.
        report: of one test's call, or of what went wrong around it.
        promise: the test's docstring.
    """
    test = report.nodeid.partition("::Test_")[2].partition("::")[2]
    sentence = test.removeprefix("test_").replace("_", " ").replace("[", " [")
    outcome: Outcome = "held" if report.passed else "skipped" if report.skipped else "failed"
    reason = ""
    if outcome == "skipped":
        reason = report.longrepr[2].removeprefix("Skipped: ")
    elif outcome == "failed":
        reason = _reason(report.longrepr)
    return Finding(
        kind.name,
        sentence,
        outcome,
        reason,
        promise=" ".join(promise.split()),
        test=f"{kind.contract.replace(':', '.')}.{test}",
        read=_read(kind),
    )


def _reason(longrepr: Any) -> str:
    crash = getattr(longrepr, "reprcrash", None)
    if crash is None or crash.message.startswith(FAILED):
        return _line(crash.message if crash else str(longrepr)).removeprefix(FAILED)
    return f"{_line(crash.message)} (line {crash.lineno} of {crash.path})"


def _line(text: str) -> str:
    return " ".join(text.split())[:MAX_REASON_CHARS]


def _read(kind: Kind[Any]) -> str:
    """Return where to read what is expected of a kind."""
    protocol = kind.makes and f"{kind.makes.__module__}.{kind.makes.__qualname__}"
    is_own = kind.contract.startswith("vlmkit_testing:")
    page = f"{PAGE}#{kind.name.replace('_', '-')}" if is_own else ""
    return ", ".join(filter(None, (protocol, page)))
