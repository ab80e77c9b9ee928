"""Writes a line of CSV for each request that ends: who asked how much, and how long it took.

Counts the blocks of the prefix cache, too. Holds no text of prompts or answers, and no tokens.
"""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

import vlmkit
from vlmkit.errors import ConfigError, VlmkitError
from vlmkit.interfaces.cache_events import CacheChange
from vlmkit.interfaces.observer import Observer, RequestEnd, RequestFacts
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit.settings.paths import OutputFile

VLMKIT_API = (1, 0)
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
COLUMNS = (
    *("ended_at_s", "id", "model", "tenant", "outcome", "prompt_tokens", "completion_tokens"),
    *("prompt_s", "queue_s", "first_token_s", "decode_s"),
)


class CsvSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section ``[observers.yourname]``.

    Attributes:
        file: what lines are added to; its folder must be there.
    """

    file: Annotated[OutputFile, msgspec.Meta(min_length=1)] = "requests.csv"


class CsvObserver(Observer):
    """Adds a line to a file for each request, when it ends.

    Args:
        settings: which file.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, settings: CsvSettings | None = None) -> None:
        path = Path((settings or CsvSettings()).file)
        try:  # ids come from clients, who may send halves of surrogate pairs
            self._file = path.open("a", encoding="utf-8", errors="backslashreplace", newline="")
        except OSError as error:
            raise ConfigError(
                f"CSV file {str(path)!r} cannot be written: {error.strerror}",
                hint="name another one in observers.yourname.file",
            ) from error
        self._rows = csv.writer(self._file)
        self._keys: set[bytes] = set()
        if self._file.tell() == 0:
            self._rows.writerow(COLUMNS)
            self._file.flush()

    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:
        """Write what an answer took; its outcome is why each of its choices ended."""
        times = end.timings
        self._write(
            *(request, at_s, " ".join(end.reasons), end.usage.completion_tokens),
            *(times.prompt_s, times.queue_s, times.first_token_s, times.decode_s),
        )

    def failed(self, request: RequestFacts, error: VlmkitError, at_s: float) -> None:
        """Write which error it was; what it says stays out."""
        self._write(request, at_s, type(error).__name__, 0, request.prompt_s, 0.0, 0.0, 0.0)

    def blocks(self, change: CacheChange, at_s: float) -> None:
        """Keep the keys of the blocks that the engine's cache holds.

        Their tokens are what clients asked; keep no more of them than you need, and log none.
        """
        if change.is_cleared:
            self._keys.clear()
        self._keys.difference_update(change.removed)
        self._keys.update(block.key for block in change.stored)

    def stats(self) -> Mapping[str, float]:
        """Return how many blocks are cached, for the statistics of the model."""
        return {"num_cached_blocks": len(self._keys)}

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(
        self, request: RequestFacts, at_s: float, outcome: str, num_tokens: int, *times_s: float
    ) -> None:
        names: list[Any] = [_cell(text) for text in (request.id, request.model, request.tenant)]
        counts = [request.prompt_tokens, num_tokens]
        self._rows.writerow(
            [f"{at_s:.3f}", *names, outcome, *counts, *(f"{time_s:.6f}" for time_s in times_s)]
        )
        self._file.flush()


def _cell(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(FORMULAS) else text


def _build(context: BuildContext) -> Observer:
    return CsvObserver(context.settings)


@vlmkit.hookimpl
def vlmkit_register_observers(registry: Registry[Observer]) -> None:
    """Offer ``observers.use = ["yourname"]``."""
    registry.add("yourname", _build, settings=CsvSettings, description="a line of CSV per request")
