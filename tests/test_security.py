"""Each section of docs/explanation/security.md names tests, and each of those tests exists."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/explanation/security.md").read_text()
SECTIONS = dict(re.findall(r"^## (S\d+)\. (.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL))
SOURCES = sorted([*ROOT.glob("packages/*/src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")])

RUNNING = {  # calls that execute their input, or may do so
    *("eval", "exec", "compile", "pickle.load", "pickle.loads", "marshal.loads", "dill.loads"),
    *("shelve.open", "joblib.load", "yaml.load", "yaml.unsafe_load", "os.system", "os.popen"),
}
STARTS_A_SERVER = {"running", "running_server", "watched", "served", "serve", "process", "target"}
"""Names of what starts a server in tests; a module over HTTP uses one of them."""

OF_CONTRACTS = Path(
    "packages/vlmkit-testing/src/vlmkit_testing"
)  # which pickle only their own data


def paths_of(module: str) -> list[Path]:
    """Return the test modules that are called so."""
    return [*ROOT.glob(f"tests/**/{module}"), *ROOT.glob(f"*/*/tests/**/{module}")]


def names_in(module: str) -> set[str]:
    """Return the names of all functions in the test modules that are called so."""
    trees = [ast.parse(path.read_text()) for path in paths_of(module)]
    return {node.name for tree in trees for node in ast.walk(tree) if hasattr(node, "name")}


def test_every_hazard_has_a_section() -> None:
    assert [*SECTIONS] == [f"S{number}" for number in range(1, 28)]


@pytest.mark.parametrize("name", SECTIONS)
def test_the_tests_that_a_section_names_exist(name: str) -> None:
    named = re.findall(r"^- `(test_\w+\.py)::(test_\w+)`$", SECTIONS[name], re.MULTILINE)
    assert len(named) == len(re.findall(r"::test_", SECTIONS[name])) > 0
    missing = [f"{module}::{test}" for module, test in named if test not in names_in(module)]
    assert not missing


@pytest.mark.parametrize("name", SECTIONS)
def test_each_section_has_a_test_over_http(name: str) -> None:
    over_http = SECTIONS[name].partition("Tests over HTTP:")[2].partition("Other tests:")[0]
    modules = set(re.findall(r"^- `(test_\w+\.py)::", over_http, re.MULTILINE))
    assert modules
    sources = {module: "".join(p.read_text() for p in paths_of(module)) for module in modules}
    assert not [module for module, source in sources.items() if not STARTS_A_SERVER & words(source)]


def words(source: str) -> set[str]:
    """Return the words of a source."""
    return set(re.findall(r"\w+", source))


def calls_in(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls of a module, each with the name that it is called by."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def test_no_module_calls_what_can_execute_data() -> None:
    found = []
    for path in SOURCES:
        is_contract = path.is_relative_to(ROOT / OF_CONTRACTS)
        for name, call in calls_in(path):
            options = {word.arg: ast.unparse(word.value) for word in call.keywords}
            is_bad = name in RUNNING and not (is_contract and name.startswith("pickle."))
            is_bad = is_bad or (name == "torch.load" and options.get("weights_only") != "True")
            is_bad = is_bad or (name == "np.load" and options.get("allow_pickle") != "False")
            is_bad = is_bad or options.get("shell") == "True"
            if is_bad:
                found.append(f"{path.relative_to(ROOT)}:{call.lineno}: {name}")
    assert not found


def test_secrets_are_compared_in_constant_time() -> None:
    """How constant it is, is the library's promise; that all keys are compared so, is ours."""
    ring = ROOT / "packages/vlmkit-server/src/vlmkit_server/auth/key_ring.py"
    nodes = list(ast.walk(ast.parse(ring.read_text())))
    (find,) = [n for n in nodes if isinstance(n, ast.FunctionDef) and n.name == "find"]
    (loop,) = [n for n in ast.walk(find) if isinstance(n, ast.For)]
    assert "hmac.compare_digest(" in ast.unparse(loop)
    assert not [n for n in ast.walk(loop) if isinstance(n, ast.Return | ast.Break)]
    compared = [ast.unparse(n) for n in ast.walk(find) if isinstance(n, ast.Compare)]
    assert not [text for text in compared if "digest" in text or "secret" in text]


def test_the_page_states_what_no_server_can_guard_against() -> None:
    section = PAGE.partition("## What a picture says")[2]
    assert "may do as it reads" in section
    assert "(../../" not in section
