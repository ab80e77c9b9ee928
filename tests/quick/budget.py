"""A pytest plugin that starts no test after a point in time, and writes which tests ran.

``python -m quick`` sets the time. Each process of pytest-xdist has the plugin.
"""

import json
import os
import time
from collections import Counter
from pathlib import Path

import pytest

UNTIL = "QUICK_UNTIL"
"""The environment variable that has the time, in seconds since the epoch."""
REPORT = "QUICK_REPORT"
"""The environment variable that names the file for the numbers of each file's tests."""
REASON = "the time is over"


class Numbers:
    """The numbers of tests that ran, that failed and that came too late, by file."""

    def __init__(self) -> None:
        self.counted: dict[str, Counter[str]] = {
            "ran": Counter(),
            "late": Counter(),
            "failed": Counter(),
        }

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test when its setup ends, and its failures."""
        path = report.nodeid.partition("::")[0]
        is_late = report.skipped and REASON in str(report.longrepr)
        if report.when == "setup":
            self.counted["late" if is_late else "ran"][path] += 1
        if report.failed:
            self.counted["failed"][path] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Count a file that cannot be imported."""
        if report.failed:
            self.counted["failed"][report.nodeid] += 1

    def pytest_sessionfinish(self) -> None:
        """Write the numbers."""
        Path(os.environ[REPORT]).write_text(json.dumps(self.counted))


def pytest_configure(config: pytest.Config) -> None:
    """Count in the process that gets all reports."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Numbers())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Skip what comes too late."""
    if time.time() > float(os.environ[UNTIL]):
        pytest.skip(REASON)
