"""The observer keeps vlmkit's contract, and writes what a spreadsheet can read."""

import csv
from pathlib import Path

import pytest

from vlmkit.errors import ConfigError, EngineError
from vlmkit.interfaces.cache_events import CacheBlock, CacheChange
from vlmkit.interfaces.observer import Observer, RequestEnd, RequestFacts
from vlmkit.types.completion import Timings, Usage
from vlmkit.types.sampling import SamplingParams
from vlmkit_testing import ObserverContract
from vlmkit_yourname.plugin import COLUMNS, CsvObserver, CsvSettings


class TestCsvObserver(ObserverContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.file = tmp_path / "requests.csv"

    def make(self) -> Observer:
        return CsvObserver(CsvSettings(file=str(self.file)))


def rows(file: Path) -> list[list[str]]:
    with file.open(newline="") as lines:
        return list(csv.reader(lines))


def test_each_request_is_a_line_and_the_header_is_written_once(tmp_path: Path) -> None:
    file = tmp_path / "requests.csv"
    request = RequestFacts("=1+1", "model", "team, one", SamplingParams(), 7)
    end = RequestEnd(("stop",), Usage(7, 2, 0, ()), Timings(0.1, 0.2, 0.3, 0.4))
    for _ in range(2):
        observer = CsvObserver(CsvSettings(file=str(file)))
        observer.finished(request, end, 10.0)
        observer.failed(request, EngineError("the engine failed"), 11.0)
        observer.close()
    header, first, second, *others = rows(file)
    assert header == list(COLUMNS)
    assert first[:7] == ["10.000", "'=1+1", "model", "team, one", "stop", "7", "2"]
    assert second[4] == "EngineError"
    assert others == [first, second]


def test_cached_blocks_are_counted_without_their_tokens(tmp_path: Path) -> None:
    observer = CsvObserver(CsvSettings(file=str(tmp_path / "requests.csv")))
    blocks = [CacheBlock(bytes([number]), b"", (number,)) for number in range(3)]
    observer.blocks(CacheChange(tuple(blocks), is_cleared=True), 10.0)
    observer.blocks(CacheChange(removed=(blocks[0].key,)), 11.0)
    assert observer.stats() == {"num_cached_blocks": 2}
    observer.blocks(CacheChange(is_cleared=True), 12.0)
    assert observer.stats() == {"num_cached_blocks": 0}
    observer.close()


def test_a_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        CsvObserver(CsvSettings(file=str(tmp_path / "nowhere" / "requests.csv")))
