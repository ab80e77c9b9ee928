"""OpenAI's ``system_fingerprint``: what answers were made with, in a few letters."""

import hashlib

from vlmkit._version import __version__
from vlmkit.interfaces.runner import RunnerFacts


def fingerprint(facts: RunnerFacts) -> str:
    """Return a short digest that changes with the version, the model's name or its limits."""
    subject = f"{__version__} {facts.name} {facts.limits}"
    return f"fp_{hashlib.sha256(subject.encode()).hexdigest()[:12]}"
