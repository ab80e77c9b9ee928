"""Broken distributions of all kinds, installed together beside working ones.

The report names the plugin, the distribution and the cause of each in one sentence. Working plugins
stay usable, ``--json`` prints JSON and ``--check`` fails. Not tested, since nothing survives them:
plugins that end the process (``os._exit``, a crash in C) or change a library from within.
"""

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

HEAD = "from vlmkit.plugins.hookspecs import hookimpl\nVLMKIT_API = (1, 0)\n"
HOOK = "@hookimpl\ndef vlmkit_register_samplers(registry):\n"
HARMLESS = f"{HEAD}{HOOK}    registry.add('fine', print)\n"
SAMPLER = """
class Sampler:
    def prepare(self, rows):
        return lambda logits: logits.argmax(-1)
"""


@dataclass(frozen=True)
class Kind:
    """A broken distribution.

    Attributes:
        name: the name of the plugin. Its distribution is called ``broken-`` and this name.
        source: the source of its module, or None without one.
        cause: the text that the report must contain as the cause.
        entry: the lines of its entry points; ``{module}`` stands for its module.
        metadata: the content of its METADATA file, or None without one.
        works: whether it gets only a remark, and its providers are registered.
    """

    name: str
    source: str | None
    cause: str
    entry: bytes = b"[vlmkit]\n{name} = {module}\n"
    metadata: bytes | None = b"Metadata-Version: 2.1\nName: broken-{name}\nVersion: 1.0\n"
    works: bool = False

    @property
    def module(self) -> str:
        return f"broken_{self.name.replace('-', '_')}"


def at_import(name: str, code: str, cause: str) -> Kind:
    return Kind(name, f"{HARMLESS}{textwrap.dedent(code)}\n", cause)


def in_hook(name: str, code: str, cause: str) -> Kind:
    return Kind(name, f"{HEAD}import msgspec\n{HOOK}    {code}\n", cause)


def with_attributes(name: str, statement: str, cause: str) -> Kind:
    return Kind(name, HARMLESS.replace("VLMKIT_API = (1, 0)", statement), cause)


def working(name: str, code: str, cause: str) -> Kind:
    """Return a working plugin that changes the process in a way that gets a remark."""
    return Kind(name, f"{HARMLESS}{textwrap.dedent(code)}\n", cause, works=True)


DOES_NOT_OFFER = "; this vlmkit offers (1, 0)"
NOT_PLAIN = "must be letters, digits, '-' or '_'"
CANNOT_WORK = "of sampler 'x' cannot work: the struct "

KINDS = (
    # The module cannot be imported.
    at_import("dependency", "import no_such_library", "No module named 'no_such_library'"),
    Kind("gone", None, "ModuleNotFoundError: No module named 'broken_gone'"),
    at_import("linked", "raise ImportError('libfast.so: not found')", "ImportError: libfast.so"),
    at_import("syntax", "def (", "SyntaxError: invalid syntax"),
    at_import("null", "a = '\0'", "null bytes"),
    at_import("raises", "raise RuntimeError('boom')", "RuntimeError: boom"),
    at_import("circular", "from broken_circular import later", "ImportError: cannot import name"),
    at_import("recursion", "def f(): f()\nf()", "RecursionError: maximum recursion depth"),
    at_import("memory", "raise MemoryError", "MemoryError"),
    at_import("exits", "import sys\nsys.exit(3)", "the plugin tried to end the process"),
    at_import("interrupts", "raise KeyboardInterrupt", "raised KeyboardInterrupt, which is no"),
    at_import("panics", "class P(BaseException): pass\nraise P('no')", "raised P: no, which is no"),
    at_import("stops", "raise GeneratorExit", "raised GeneratorExit, which is no"),
    at_import(
        "lines",
        r"raise ValueError('one\n\ttwo\x1b[2J\u202e')",
        "ValueError: one two\ufffd[2J\ufffd",
    ),
    at_import("long", "raise ValueError('x' * 10**6)", "x" * 400),
    at_import(
        "mute", "class E(Exception):\n    def __str__(self): raise OSError\nraise E", "E: its text"
    ),
    Kind(
        "wrong-group",
        HARMLESS,
        "its entry point is in the group 'vlmkit.plugins', which vlmkit does not read",
        entry=b"[vlmkit.plugins]\n{name} = {module}\n",
    ),
    # It was written for another program or version.
    with_attributes("api-none", "", "does not say VLMKIT_API" + DOES_NOT_OFFER),
    with_attributes("api-old", "VLMKIT_API = (0, 9)", "has VLMKIT_API = (0, 9)" + DOES_NOT_OFFER),
    with_attributes("api-new", "VLMKIT_API = (2, 0)", "has VLMKIT_API = (2, 0)" + DOES_NOT_OFFER),
    with_attributes(
        "api-minor", "VLMKIT_API = (1, 99)", "has VLMKIT_API = (1, 99)" + DOES_NOT_OFFER
    ),
    with_attributes("api-odd", "VLMKIT_API = 'one'", "= 'one', which is not (major, minor)"),
    # Its hooks are invalid.
    Kind("no-hook", "VLMKIT_API = 1\n", "the plugin implements no hook"),
    Kind(
        "misspelt", HARMLESS.replace("_samplers", "_sampler"), "no hook 'vlmkit_register_sampler'"
    ),
    Kind("unmarked", HARMLESS.replace("@hookimpl", ""), "'vlmkit_register_samplers' is not marked"),
    Kind(
        "signature",
        HARMLESS.replace("(registry)", "(a, b)"),
        "takes (a, b), but is given (registry)",
    ),
    Kind("default", HARMLESS.replace("(registry)", "(registry=None)"), "gives registry a default"),
    Kind(
        "async-hook", HARMLESS.replace("def v", "async def v"), "is an async function or one that"
    ),
    in_hook("yields", "yield registry.add('x', print)", "is an async function or one that yields"),
    in_hook("returns", "return {'x': print}", "returned a value, which is ignored"),
    in_hook("hook-raises", "registry.add('x', print); 1 // 0", "ZeroDivisionError"),
    in_hook("hook-exits", "raise SystemExit", "the plugin tried to end the process"),
    # What it registers is invalid.
    in_hook("twice", "[registry.add('x', print) for _ in 'ab']", "'x' is registered twice by"),
    in_hook("name-empty", "registry.add('', print)", f"sampler name '' {NOT_PLAIN}"),
    in_hook("name-spaces", "registry.add('a b', print)", f"sampler name 'a b' {NOT_PLAIN}"),
    in_hook(
        "name-control", r"registry.add('a\x1b[2J', print)", f"sampler name 'a\\x1b[2J' {NOT_PLAIN}"
    ),
    in_hook("name-number", "registry.add(7, print)", f"sampler name 7 {NOT_PLAIN}"),
    in_hook("name-auto", "registry.add('auto', print)", f"sampler name 'auto' {NOT_PLAIN}"),
    in_hook("no-build", "registry.add('x', None)", "must be given a function as build"),
    in_hook(
        "async-build",
        "exec('async def b(c): 0', globals()); registry.add('x', b)",
        "the build of sampler 'x' is an async",
    ),
    in_hook(
        "settings-kind",
        "registry.add('x', print, settings=dict)",
        "a subclass of msgspec.Struct as settings",
    ),
    in_hook(
        "settings-needy",
        "registry.add('x', print, settings=msgspec.defstruct('S', [('a', int)]))",
        f"'S' {CANNOT_WORK}has no default for 'a'",
    ),
    in_hook(
        "settings-type",
        "own = type(registry) | None\n    "
        "registry.add('x', print, settings=msgspec.defstruct('S', [('a', own, None)]))",
        f"'S' {CANNOT_WORK}cannot be read",
    ),
    in_hook(
        "priority",
        "registry.add('x', print, priority='9')",
        "a whole number or a function as priority",
    ),
    in_hook("description", "registry.add('x', print, description=9)", "a text as description"),
    in_hook(
        "build-call", "registry.add('x', lambda: 0)", "the build of sampler 'x' cannot be called"
    ),
    in_hook("why-not", "registry.add('x', print, why_not='no')", "a function as why_not"),
    Kind(
        "reserved",
        HARMLESS.replace("samplers", "commands").replace("fine", "ask"),
        "has the name of one of vlmkit's own",
    ),
    # Its kinds are invalid.
    at_import("kinds-odd", "VLMKIT_KINDS = 7", "VLMKIT_KINDS is of type 'int'"),
    at_import("kinds-held", "VLMKIT_KINDS = ('a',)", "VLMKIT_KINDS holds 'a'"),
    at_import(
        "kind-taken",
        "from vlmkit.plugins.kinds import ENGINE\nVLMKIT_KINDS = (ENGINE,)",
        "there is a kind 'engine' already",
    ),
    # Its entry points are invalid.
    Kind(
        "attribute", HARMLESS, "has no attribute 'absent'", b"[vlmkit]\n{name} = {module}:absent\n"
    ),
    Kind(
        "no-module",
        f"{HARMLESS}number = 42\n",
        "does not say VLMKIT_API",
        b"[vlmkit]\n{name} = {module}:number\n",
    ),
    Kind("nonsense", HARMLESS, "says '!!', which names no module", b"[vlmkit]\n{name} = !!\n"),
    Kind(
        "same",
        HARMLESS,
        "sampler 'fine' is registered twice",
        b"[vlmkit]\n{name} = {module}\nagain = {module}\n",
    ),
    Kind("no-value", HARMLESS, "its entry points cannot be read: ", b"[vlmkit]\n{name}\n"),
    Kind(
        "bytes",
        HARMLESS,
        "its entry points cannot be read: ",
        b"[vlmkit]\n\xff = {module}\n",
    ),
    # It works, but its installation is incomplete.
    Kind("no-metadata", HARMLESS, "does not say its name", metadata=None, works=True),
    Kind(
        "no-version",
        HARMLESS,
        "does not say its version",
        metadata=b"Name: broken-{name}\n",
        works=True,
    ),
    Kind(
        "bytes-metadata",
        HARMLESS,
        "has metadata that cannot be read: UnicodeDecodeError",
        metadata=b"Name: \xff\n",
        works=True,
    ),
    # It works, but changes the process.
    working("prints", "print('{')", "printed to standard output; it went to standard error"),
    working(
        "stream",
        "import sys, io\nsys.stdout = io.StringIO()",
        "replaced the standard streams",
    ),
    working("folder", "import os\nos.chdir('/')", "changed the working folder, which was restored"),
    working(
        "signals",
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "set signal handlers, which were restored: SIGTERM",
    ),
    working(
        "log",
        "import logging\nlogging.basicConfig(level=10, force=True)",
        "configured the root logger",
    ),
    working("path", "import sys\nsys.path.insert(0, '/nowhere')", "changed sys.path"),
    working(
        "environment", "import os\nos.environ['BROKEN'] = 'x'", "changed the environment: BROKEN"
    ),
    working(
        "threads",
        """
        import os, threading, time

        def chatter():
            while True:
                print("{", flush=True)
                os.write(1, b"{")
                time.sleep(0.002)

        threading.Thread(target=chatter, name="chatter", daemon=True).start()
        """,
        "started threads: chatter",
    ),
)
LOW = Kind(
    "low",
    f"{HARMLESS}import os\nos.write(1, b'{{')\nprint('{{', file=__import__('sys').stderr)\n",
    "",
)
"""Writes to the file descriptor of standard output, not through Python."""
SLOW = Kind("slow", f"{HARMLESS}import time, numpy\ntime.sleep(0.3)\n", "")
GOOD = Kind("good", f"{HEAD}{SAMPLER}{HOOK}    registry.add('good', lambda c: Sampler())\n", "")

BROKEN_BUILDS = {
    "raises": ("lambda c: 1 // 0", "could not be built: ZeroDivisionError: integer division"),
    "exits": ("lambda c: exit(3)", "could not be built: SystemExit: 3"),
    "nothing": ("lambda c: None", "was built as None"),
    "class": ("lambda c: Sampler", "was built as the class 'Sampler', not as an instance of one"),
    "later": ("lambda c: later(c)", "was built as a 'coroutine', which is not awaited"),
    "partial": (
        "lambda c: object()",
        "was built as 'object', which lacks 'prepare' of the protocol",
    ),
    "waits": ("lambda c: Waiting()", "'prepare' is an async function, but it is not awaited"),
    "odd": ("lambda c: Odd()", "'prepare' takes (), but is called with (rows)"),
    "why-raises": (
        "print, why_not=lambda: 1 // 0",
        "cannot be used: its own check failed with Zero",
    ),
    "why-exits": ("print, why_not=lambda: exit(3)", "its own check failed with SystemExit"),
    "why-odd": ("print, why_not=lambda: 9", "its own check returned a value of type 'int'"),
    "serve-odd": (
        "print, cannot_serve=lambda m: [1]",
        "its own check returned a value of type 'list'",
    ),
}
USED = Kind(
    "used",
    HEAD
    + SAMPLER
    + textwrap.dedent("""
    class Waiting:
        async def prepare(self, rows): ...

    class Odd:
        def prepare(self): ...

    async def later(context): ...
    """)
    + HOOK
    + "".join(
        f"    registry.add('{name}', {build})\n" for name, (build, _) in BROKEN_BUILDS.items()
    )
    + "    registry.add('proud', lambda c: Sampler(), priority=lambda m: 1 // 0)\n",
    "",
)
TRY = """
import json, sys
from vlmkit.plugins import loader
from vlmkit.plugins.registry import BuildContext
samplers, told = loader.load(block=['threads']).samplers, {}
for name in sys.argv[1:]:
    try:
        samplers.build(name, {}, BuildContext("model"))
    except Exception as error:
        told[name] = f"{type(error).__name__}: {error}"
print('told: ' + json.dumps(told))
"""


@dataclass(frozen=True)
class Site:
    """A folder of installed distributions, which commands find beside those of this environment."""

    folder: Path
    environ: dict[str, str] = field(default_factory=dict)

    def install(self, *kinds: Kind) -> "Site":
        for kind in kinds:
            if kind.source is not None:
                (self.folder / f"{kind.module}.py").write_text(kind.source)
            info = self.folder / f"{kind.module}-1.0.dist-info"
            info.mkdir()
            for file, content in (("entry_points.txt", kind.entry), ("METADATA", kind.metadata)):
                if content is not None:
                    named = content.replace(b"{name}", kind.name.encode())
                    (info / file).write_bytes(named.replace(b"{module}", kind.module.encode()))
        return self

    def run(self, *command: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        path = os.pathsep.join(filter(None, (str(self.folder), os.environ.get("PYTHONPATH"))))
        plain = {name: v for name, v in os.environ.items() if not name.startswith("VLMKIT_")}
        return subprocess.run(
            [sys.executable, *command],
            env={**plain, "PYTHONPATH": path, **self.environ, **environ},
            cwd=self.folder,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            check=False,
        )

    def vlmkit(self, *arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        return self.run("-m", "vlmkit", *arguments, **environ)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("site")
    return Site(folder).install(*KINDS, LOW, SLOW, GOOD, USED)


@pytest.fixture(scope="module")
def json_run(site: Site) -> "subprocess.CompletedProcess[str]":
    return site.vlmkit("plugins", "--json", "--check")


@pytest.fixture(scope="module")
def report(json_run: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    report: dict[str, Any] = json.loads(json_run.stdout)
    return report


@pytest.fixture(scope="module")
def plugins_output(site: Site) -> "subprocess.CompletedProcess[str]":
    return site.vlmkit("plugins", "--times", "--check", VLMKIT_BLOCK="threads")  # it goes on


def test_kinds_of_broken_distributions_are_many_and_have_distinct_names() -> None:
    assert len(KINDS) >= 45
    assert len({kind.name for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_broken_distribution_is_reported_with_its_cause(
    kind: Kind, report: dict[str, Any]
) -> None:
    sources = (f"broken-{kind.name}", kind.module)  # without metadata, its folder's name
    plugins = [p for p in report["plugins"] if p["source"] in sources]
    sentences = [s for p in plugins for s in filter(None, (p["error"], *p["remarks"]))]
    assert any(kind.cause in sentence for sentence in sentences), sentences
    assert all(sentence.isprintable() and len(sentence) < 700 for sentence in sentences)
    assert kind.works == (not any(p["error"] for p in plugins))
    offered = {p["name"] for p in report["providers"] if p["plugin"] in sources}
    assert offered == ({"fine"} if kind.works or kind.name == "same" else set())


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.name != "threads"], ids=lambda kind: kind.name
)
def test_an_error_names_the_plugin_and_its_distribution(
    kind: Kind, plugins_output: "subprocess.CompletedProcess[str]"
) -> None:
    lines = [line for line in plugins_output.stdout.splitlines() if kind.cause in line]
    name = f"broken-{kind.name}" if kind.name in ("no-value", "bytes") else kind.name
    names = [f"plugin '{name}' of {source}" for source in (f"broken-{kind.name}", kind.module)]
    assert any(line.startswith(plugins) for line in lines for plugins in names), lines


def test_check_fails_and_working_plugins_stay_usable(
    json_run: "subprocess.CompletedProcess[str]",
    plugins_output: "subprocess.CompletedProcess[str]",
    report: dict[str, Any],
) -> None:
    assert json_run.returncode == plugins_output.returncode == 1
    working_plugins = [p for p in report["plugins"] if not p["source"].startswith("broken")]
    assert {"vlmkit", "vlmkit-mock"} <= {p["source"] for p in working_plugins}
    assert not [p for p in working_plugins if p["error"] or p["remarks"]]
    assert "good" in [p["name"] for p in report["providers"]]


def test_a_slow_import_is_reported_with_the_libraries_that_it_imported(
    report: dict[str, Any], plugins_output: "subprocess.CompletedProcess[str]"
) -> None:
    (slow,) = [p for p in report["plugins"] if p["name"] == "slow"]
    assert slow["import_s"] >= 0.3
    assert slow["num_modules"] > 10
    assert slow["heavy"] == ["numpy"]
    lines = plugins_output.stdout.splitlines()
    assert lines[0].split() == [
        "PLUGIN",
        "DISTRIBUTION",
        "SECONDS",
        "MODULES",
        "HEAVY",
        "LIBRARIES",
    ]
    (line,) = [line for line in lines if line.startswith("slow ")]
    assert line.endswith("numpy")


def test_control_characters_of_plugins_are_not_printed(
    plugins_output: "subprocess.CompletedProcess[str]",
) -> None:
    assert "\x1b" not in plugins_output.stdout
    assert "\u202e" not in plugins_output.stdout


def test_a_model_answers_beside_broken_distributions(site: Site) -> None:
    arguments = ("ask", "mock", "hi", "-m", "4", "--set", "sampler.use=good", "--json")
    json_run = site.vlmkit(*arguments)
    assert json_run.returncode == 0, json_run.stderr
    assert json.loads(json_run.stdout)["finish_reason"] in ("stop", "length")


@pytest.fixture(scope="module")
def build_errors(site: Site) -> dict[str, str]:
    json_run = site.run("-c", TRY, *BROKEN_BUILDS, "good", "proud")
    found: dict[str, str] = json.loads(json_run.stdout.rpartition("told: ")[2])
    return found


@pytest.mark.parametrize("name", BROKEN_BUILDS)
def test_a_provider_that_fails_to_build_is_named_with_its_distribution(
    name: str, build_errors: dict[str, str]
) -> None:
    assert f"sampler '{name}' from 'broken-used'" in build_errors[name]
    assert BROKEN_BUILDS[name][1] in build_errors[name]


def test_working_providers_are_built_beside_broken_ones(build_errors: dict[str, str]) -> None:
    assert set(build_errors) == set(BROKEN_BUILDS), build_errors


# A single broken distribution, the usual case.


def test_tracebacks_are_shown_only_with_debug(tmp_path: Path) -> None:
    site = Site(tmp_path).install(KINDS[5])
    plain = site.vlmkit("plugins")
    assert plain.returncode == 0
    assert "Traceback" not in plain.stderr + plain.stdout
    for debugged in (site.vlmkit("--debug", "plugins"), site.vlmkit("plugins", VLMKIT_DEBUG="1")):
        assert (
            "plugin 'raises' of broken-raises 1.0 could not be loaded\nTraceback" in debugged.stderr
        )
        assert 'broken_raises.py", line' in debugged.stderr
        assert "RuntimeError: boom" in debugged.stderr


def test_a_misspelt_block_is_reported_and_a_correct_one_makes_the_check_pass(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path).install(KINDS[0])
    wrong = site.vlmkit("plugins", "--check", "--json", VLMKIT_BLOCK="broken-dependenzy")
    assert wrong.returncode == 1
    assert wrong.stderr == (
        "note: VLMKIT_BLOCK names 'broken-dependenzy', and no plugin or distribution has that "
        "name; did you mean 'broken-dependency'?\n"
    )
    json.loads(wrong.stdout)
    right = site.vlmkit("plugins", "--check", VLMKIT_BLOCK="broken-dependency")
    assert (right.returncode, right.stderr) == (0, "")


def test_output_of_a_plugin_at_import_is_not_part_of_an_answer(tmp_path: Path) -> None:
    site = Site(tmp_path).install(LOW, KINDS[[k.name for k in KINDS].index("prints")])
    answer = site.vlmkit("ask", "mock", "hi", "-m", "4", "--set", "sampler.use=array")
    assert answer.returncode == 0, answer.stderr
    assert "{" not in answer.stdout
    assert answer.stderr.count("{") == 3
