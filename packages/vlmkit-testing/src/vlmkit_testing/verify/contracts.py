"""Runs the contracts of :mod:`vlmkit_testing` on an installed provider.

Each contract is inherited as in a plugin's own tests, and pytest runs it in this process. What an
author would provide, such as a tokenizer's special tokens, is derived from the model, or skipped.
"""

import contextlib
import importlib.util
import os
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec.structs import replace as replace_entry

from vlmkit.assembly.load import assemble
from vlmkit.config import Config
from vlmkit.config.providers import described
from vlmkit.errors import PluginError, UnknownPlugin
from vlmkit.kit.install_command import install_command
from vlmkit.plugins.kinds import RUNNER, Kind
from vlmkit.plugins.loader import Plugins
from vlmkit.plugins.registry import BuildContext
from vlmkit_testing.verify.finding import Finding, found, of_the_whole
from vlmkit_testing.verify.subjects import Given, subject_of

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


def check(
    name: str,
    plugins: Plugins,
    config: Config,
    given: Given | None = None,
    tolerance: float | None = None,
) -> list[Finding]:
    """Run the contract of each kind that a provider is of.

    Args:
        name: the provider.
        plugins: what is installed.
        config: its settings, where it is used.
        given: what components are tried on.
        tolerance: how far numbers may lie apart, in place of the contract's own.

    Raises:
        PluginError: pytest or hypothesis is missing.
        UnknownPlugin: nothing that is installed has the name.
    """
    missing = [m for m in ("pytest", "hypothesis") if importlib.util.find_spec(m) is None]
    if missing:
        raise PluginError(
            f"contracts are run by pytest: {' and '.join(missing)} is not installed",
            hint=install_command("vlmkit-testing"),
        )
    kinds = [kind for kind in plugins.kinds if plugins.of(kind).offers(name)]
    if not kinds:
        every = map(plugins.of, plugins.kinds)
        names = sorted({registry.key(p) for registry in every for p in registry})
        raise UnknownPlugin(
            f"no installed plugin provides {name!r}", hint=f"installed: {', '.join(names)}"
        )
    given = given or Given()
    findings: list[Finding] = []
    subjects: dict[str, Mapping[str, Any]] = {}
    for kind in kinds:
        make = _maker(kind, name, plugins, config, given)
        subject = subject_of(plugins.of(kind).get(name), kind, make, given, plugins)
        if not kind.contract:
            findings.append(of_the_whole(kind, "there is none"))
        elif isinstance(subject, str):
            findings.append(of_the_whole(kind, subject))
        else:
            bound = {} if tolerance is None else {"atol": tolerance}
            subjects[kind.name] = {**subject, **bound}
    tried = [kind for kind in kinds if kind.name in subjects]
    with tempfile.TemporaryDirectory() as folder:
        is_set = any(_settings(kind, name, plugins, config) for kind in tried)
        # Files that a component writes are dropped, unless settings may name relative paths.
        with contextlib.nullcontext() if is_set else contextlib.chdir(folder):
            return [*findings, *_run(tried, subjects)]


def _maker(
    kind: Kind[Any], name: str, plugins: Plugins, config: Config, given: Given
) -> Callable[..., Any]:
    """Return what builds the provider afresh, with its settings if the config chooses it.

    What it is given by name is put into the context. One that cannot be built is told once.
    """
    import pytest

    settings = _settings(kind, name, plugins, config)
    is_broken = False

    def make(**parts: Any) -> Any:
        nonlocal is_broken
        if is_broken:
            pytest.skip("it cannot be built")
        try:
            if kind == RUNNER and given.entry is not None:
                own = {"use": name, **settings}
                return assemble(replace_entry(given.entry, runner=own), config, plugins)
            context = BuildContext(registries=plugins.by_kind)
            if given.model is not None:
                context = given.model.context(beside_tokenizer=kind.name != "tokenizer")
            return plugins.of(kind).build(name, settings, replace(context, **parts))
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            is_broken = True
            reason = f"it cannot be built: {described(error)}"
        pytest.fail(reason, pytrace=False)

    return make


def _settings(kind: Kind[Any], name: str, plugins: Plugins, config: Config) -> Mapping[str, Any]:
    """Return what a config sets for a provider that it chooses."""
    if kind.section not in plugins.sections:  # a plugin's own kind, which has no table
        return {}
    if kind.mode == "all":
        return config.group(kind.section).settings.get(name, {})
    if kind.mode == "one" and kind.section and config.component(kind.section).use == name:
        return config.component(kind.section).settings
    return {}


def _run(kinds: Seq[Kind[Any]], subjects: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Run pytest on the contracts, apart from whatever tests, settings and files are around."""
    import pytest

    findings: list[Finding] = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pytest.ini").write_text("[pytest]\n")
        file = Path(folder) / f"test_contracts_{secrets.token_hex(4)}.py"  # none before had it
        bodies = [TESTS_OF_KIND.format(name=kind.name, contract=kind.contract) for kind in kinds]
        file.write_text(TESTS + "".join(bodies))
        options = ["-c", f"{folder}/pytest.ini", "--rootdir", folder, "--import-mode=importlib"]
        quiet = ["-p", "no:terminal", "-p", "no:cacheprovider"]
        before = os.environ.pop("PYTEST_ADDOPTS", None)
        try:
            plugin = _plugin(kinds, subjects, findings)
            code = pytest.main([*options, *quiet, str(file)], plugins=[plugin])
        finally:
            if before is not None:
                os.environ["PYTEST_ADDOPTS"] = before
    if kinds and not findings:
        names = ", ".join(kind.words for kind in kinds)
        raise PluginError(
            f"pytest ran no test of {names}: it ended with {int(code)}",
            hint="look whether its own plugins work here: pytest --version",
        )
    return findings


def _plugin(
    kinds: Seq[Kind[Any]], subjects: Mapping[str, Mapping[str, Any]], findings: list[Finding]
) -> object:
    """Return a plugin of pytest that lends the subjects and notes what becomes of each test."""
    import pytest

    by_name = {kind.name: kind for kind in kinds}
    promises: dict[str, str] = {}

    class Plugin:
        @pytest.fixture(name="subjects")
        def lend(self) -> Mapping[str, Mapping[str, Any]]:
            return subjects

        def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
            for item in items:
                promises[item.nodeid] = getattr(getattr(item, "obj", None), "__doc__", "") or ""

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.when == "call" or not report.passed:
                name = report.nodeid.partition("::Test_")[2].partition("::")[0]
                findings.append(found(by_name[name], report, promises.get(report.nodeid, "")))

    return Plugin()
