"""Runs the contracts of :mod:`vlmkit.testing` on a provider that is installed.

Each contract is inherited as a plugin's own tests would, and pytest runs it in this process. What
only a plugin's author can say of a component, such as which parameters a sampler leaves out, is not
known here: such a sentence fails.
"""

import importlib.util
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from vlmkit.config import Config
from vlmkit.errors import PluginError, UnknownPlugin
from vlmkit.plugins.kinds import Kind
from vlmkit.plugins.loader import Plugins
from vlmkit.plugins.registry import BuildContext
from vlmkit.verify.subjects import ModelParts, subject_of

TESTS = """
import pkgutil
import pytest
"""
TESTS_OF_KIND = """
pytest.register_assert_rewrite({contract!r}.partition(":")[0])

class Test_{name}(pkgutil.resolve_name({contract!r})):
    @pytest.fixture(autouse=True)
    def _subject(self, subjects):
        vars(self).update(subjects[{name!r}])
"""

MAX_REASON_CHARS = 300

Outcome = Literal["held", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one sentence of a contract.

    Attributes:
        kind: the kind of component that it is about.
        sentence: the test's name in words.
        outcome: whether it held.
        reason: why it failed or was skipped.
    """

    kind: str
    sentence: str
    outcome: Outcome
    reason: str = ""


def check(
    name: str,
    plugins: Plugins,
    config: Config,
    model: ModelParts | None,
    tolerance: float | None = None,
) -> list[Finding]:
    """Run the contract of each kind that a provider is of.

    Args:
        name: the provider.
        plugins: what is installed.
        config: its settings, where it is used.
        model: what tokenizers, encoders and engines are tried on.
        tolerance: how far numbers may lie apart, in place of the contract's own.

    Raises:
        PluginError: pytest or hypothesis is missing.
        UnknownPlugin: nothing that is installed has the name.
    """
    missing = [m for m in ("pytest", "hypothesis") if importlib.util.find_spec(m) is None]
    if missing:
        raise PluginError(
            f"contracts are run by pytest: {' and '.join(missing)} is not installed",
            hint='pip install "vlmkit[testing]"',
        )
    kinds = [kind for kind in plugins.kinds if plugins.of(kind).offers(name)]
    if not kinds:
        every = map(plugins.of, plugins.kinds)
        names = sorted({registry.key(p) for registry in every for p in registry})
        raise UnknownPlugin(
            f"no installed plugin provides {name!r}", hint=f"installed: {', '.join(names)}"
        )
    findings: list[Finding] = []
    subjects: dict[str, Mapping[str, Any]] = {}
    for kind in kinds:
        make = _maker(kind, name, plugins, config, model)
        subject = subject_of(kind.name, name, make, model)
        if not kind.contract:
            findings.append(Finding(kind.name, "the whole contract", "skipped", "there is none"))
        elif isinstance(subject, str):
            findings.append(Finding(kind.name, "the whole contract", "skipped", subject))
        else:
            bound = {} if tolerance is None else {"atol": tolerance}
            subjects[kind.name] = {**subject, **bound}
    contracts = {kind.name: kind.contract for kind in kinds if kind.name in subjects}
    return [*findings, *_run(contracts, subjects)]


def _maker(
    kind: Kind[Any], name: str, plugins: Plugins, config: Config, model: ModelParts | None
) -> Callable[..., Any]:
    """Return what builds the provider afresh, with its settings if the config chooses it.

    What it is given by name is put into the context.
    """
    settings: Mapping[str, Any] = {}
    if kind.mode == "all":
        settings = config.group(kind.section).settings.get(name, {})
    elif kind.mode == "one" and kind.section and config.component(kind.section).use == name:
        settings = config.component(kind.section).settings

    def make(**given: Any) -> Any:
        context = BuildContext(registries=plugins.by_kind) if model is None else model.context()
        return plugins.of(kind).build(name, settings, replace(context, **given))

    return make


def _run(contracts: Mapping[str, str], subjects: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Run pytest on the contracts, apart from whatever tests and settings are around."""
    import pytest

    findings: list[Finding] = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pytest.ini").write_text("[pytest]\n")
        file = Path(folder) / "test_contracts.py"
        bodies = [
            TESTS_OF_KIND.format(name=name, contract=contract)
            for name, contract in contracts.items()
        ]
        file.write_text(TESTS + "".join(bodies))
        options = ["-c", f"{folder}/pytest.ini", "--rootdir", folder, "--import-mode=importlib"]
        quiet = ["-p", "no:terminal", "-p", "no:cacheprovider"]
        before = os.environ.pop("PYTEST_ADDOPTS", None)
        try:
            code = pytest.main([*options, *quiet, str(file)], plugins=[_plugin(subjects, findings)])
        finally:
            if before is not None:
                os.environ["PYTEST_ADDOPTS"] = before
    if contracts and not findings:
        raise PluginError(
            f"pytest ran no test of {', '.join(contracts)}: it ended with {int(code)}",
            hint="look whether its own plugins work here: pytest --version",
        )
    return findings


def _plugin(subjects: Mapping[str, Mapping[str, Any]], findings: list[Finding]) -> object:
    """Return a plugin of pytest that lends the subjects and notes what becomes of each test."""
    import pytest

    class Plugin:
        @pytest.fixture(name="subjects")
        def lend(self) -> Mapping[str, Mapping[str, Any]]:
            return subjects

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.when == "call" or not report.passed:
                findings.append(_finding(report))

    return Plugin()


def _finding(report: Any) -> Finding:
    kind, _, test = report.nodeid.partition("::Test_")[2].partition("::")
    sentence = test.removeprefix("test_").replace("_", " ").replace("[", " [")
    if report.skipped:
        return Finding(kind, sentence, "skipped", report.longrepr[2].removeprefix("Skipped: "))
    if report.passed:
        return Finding(kind, sentence, "held")
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(report.longrepr) if crash is None else crash.message
    return Finding(kind, sentence, "failed", " ".join(text.split())[:MAX_REASON_CHARS])
