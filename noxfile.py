# /// script
# requires-python = ">=3.11"
# dependencies = ["nox>=2025.5", "packaging"]
# ///
"""Every task of the project. ``nox -s demo`` sets up and runs, ``nox -s tests`` sets up and tests.

The sessions use virtualenv and pip, so they see a machine's pip configuration. ``TORCH_BUILD=any``
takes the torch that pip prefers (a CUDA build, say) in place of the pinned one for CPUs.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import nox
from packaging.requirements import Requirement

nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["tests", "contract", "lint", "types"]

# Without bytecode on the disk, each process of the tests and each command compiles its imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

PROJECT = nox.project.load_toml("pyproject.toml")
CORE, SERVER, TESTING = (f"packages/vlmkit-{name}" for name in ("core", "server", "testing"))
QUANTIZED = "packages/vlmkit-quantized"
TOGETHER = "packages/vlmkit"  # has no code
MOCK, HF = "plugins/vlmkit-mock", "plugins/vlmkit-hf"
TORCH, ONNX, DEMO = "plugins/vlmkit-torch", "plugins/vlmkit-onnx", "plugins/vlmkit-demo"
GUIDANCE, MCP, PDF = "plugins/vlmkit-guidance", "plugins/vlmkit-mcp", "plugins/vlmkit-pdf"
HEIF, OLLAMA, BENCH = (f"plugins/vlmkit-{name}" for name in ("heif", "ollama", "bench"))
GRPC, EVENTS, RAY = (f"plugins/vlmkit-{name}" for name in ("grpc", "events", "ray"))
WEBUI = "plugins/vlmkit-webui"
LLAMA = "plugins/vlmkit-llama[cpu]"
MONITOR = "plugins/vlmkit-monitor[otlp]"
ONNX_CPU, ONNX_EXPORT = f"{ONNX}[cpu]", f"{ONNX}[cpu,export]"
HF_CONVERT, TORCH_QUANTIZED = f"{HF}[convert]", f"{TORCH}[quantized]"
TESTED = (CORE, SERVER, TESTING, MOCK)
"""What tests of a plugin need beside it."""
ALL = [
    *TESTED,
    QUANTIZED,
    HF_CONVERT,
    TORCH_QUANTIZED,
    ONNX_EXPORT,
    DEMO,
    GUIDANCE,
    MCP,
    PDF,
    HEIF,
    OLLAMA,
    BENCH,
    GRPC,
    EVENTS,
    LLAMA,
    RAY,
    WEBUI,
    MONITOR,
    TOGETHER,
]
PATHS = [path.partition("[")[0] for path in ALL]
METADATA = [f"{path}/pyproject.toml" for path in PATHS]
SOURCES = [f"{path}/src" for path in PATHS if path != TOGETHER]
TORCH_PIN = (
    [] if os.environ.get("TORCH_BUILD") == "any" else PROJECT["tool"]["vlmkit"]["pins"]["torch-cpu"]
)
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
# Tests run side by side, three processes for two cores, since some wait rather than compute; four
# of them have torch in memory four times.
NUM_PROCESSES = min(4, (3 * (os.cpu_count() or 1) + 1) // 2)
SIDE_BY_SIDE = ("-n", str(NUM_PROCESSES), "--dist", "worksteal")
# What is installed beside a distribution whose oldest dependencies are tried.
OLDEST = {
    CORE: TESTED,
    SERVER: (*TESTED, MONITOR),
    TESTING: TESTED,
    MOCK: TESTED,
    HF: (*TESTED, QUANTIZED, HF),
    ONNX_CPU: (*TESTED, QUANTIZED, HF, ONNX_CPU, DEMO),
    QUANTIZED: (*TESTED, QUANTIZED),
    GUIDANCE: (*TESTED, QUANTIZED, HF, GUIDANCE),
    MCP: (*TESTED, MCP),
    PDF: (*TESTED, PDF),
    HEIF: (*TESTED, HEIF),
    OLLAMA: (*TESTED, GUIDANCE, OLLAMA),
    GRPC: (*TESTED, GRPC),
    WEBUI: (*TESTED, WEBUI),
    MONITOR: (*TESTED, MONITOR),
}
# What each client needs to be tried by the file of tests/clients that has its name.
CLIENTS = {
    "openai": ["openai"],
    "aider": ["aider-chat"],
    "anthropic": ["anthropic"],
    "dspy": ["dspy", "numpy"],
    "guidellm": ["guidellm[vision]", *TORCH_PIN],
    "haystack": ["haystack-ai", "pytest-asyncio"],
    "instructor": ["instructor"],
    "langchain": ["langchain-openai", "langchain-tests"],
    "langchain_qwen3": ["langchain-openai", "langchain-tests"],
    "litellm": ["litellm", "mcp"],
    "litellm_proxy": ["litellm[proxy]", "openai"],
    "lm_eval": ["lm-eval[api]", *TORCH_PIN],
    "llama_index": ["llama-index-embeddings-openai-like", "llama-index-llms-openai-like"],
    "llm": ["llm"],
    "ollama": ["ollama"],
    "open_webui": ["open-webui", *TORCH_PIN],
    "openai_agents": ["openai-agents", "pytest-asyncio"],
    "pydantic_ai": ["pydantic-ai-slim[anthropic,openai]", "pytest-asyncio"],
    "rerankers": ["cohere", "llama-index-postprocessor-jinaai-rerank"],
    "smolagents": ["smolagents[openai]"],
    "vllm_bench": ["aiohttp", "numpy", "pillow", "regex", "requests", "tqdm", *TORCH_PIN],
    "vllm_router": ["openai", "vllm-router==0.1.17"],
    "npm": [],
    "codex": [],
    "continue": [],
    "opencode": [],
    "promptfoo": [],
}
# What is installed without what it requires: vLLM's functions that ask servers need little of that.
CLIENTS_ALONE = {"vllm_bench": ["vllm"]}
# What npm installs for a client.
CLIENTS_OF_NODE = {
    "npm": [
        "@ai-sdk/anthropic",
        "@ai-sdk/openai",
        "@ai-sdk/openai-compatible",
        "@anthropic-ai/sdk",
        "@langchain/core",
        "@langchain/openai",
        "@llamaindex/openai",
        "ai",
        "llamaindex",
        "ollama",
        "openai",
        "zod",
    ],
    "codex": ["@openai/codex"],
    "continue": ["@continuedev/cli"],
    "opencode": ["opencode-ai"],
    "promptfoo": ["promptfoo", "node@22"],
}
PICTURE = f"{DEMO}/src/vlmkit_demo/pictures/shapes.png"


def install(session: nox.Session, *distributions: str, groups: tuple[str, ...] = ()) -> None:
    """Install distributions in editable mode, with the pinned torch if any of them needs it."""
    editable = [argument for path in distributions for argument in ("-e", path)]
    pins = TORCH_PIN if any(path.startswith(TORCH) for path in distributions) else []
    requirements = nox.project.dependency_groups(PROJECT, *groups) if groups else ()
    session.install("-q", *editable, *requirements, *pins)


def install_axe(session: nox.Session) -> None:
    """Install axe-core, which finds flaws of the web page; its tests are skipped without it."""
    if shutil.which("npm") and shutil.which("chromedriver"):
        folder = str(Path(session.create_tmp()).resolve() / "axe")
        install = ("npm", "install", "--silent", "--prefix", folder, "axe-core@4")
        session.run(*install, external=True, success_codes=range(256))
        session.env["AXE_FOLDER"] = folder


def ask_demo(session: nox.Session) -> None:
    """Ask the packaged model about a picture; who runs nox may leave its own input open."""
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    session.run("vlmkit", "ask", "demo", "What is in this picture?", "--image", PICTURE)


@nox.session
def demo(session: nox.Session) -> None:
    """Answer a question about a picture with the packaged model, without torch."""
    install(session, CORE, QUANTIZED, HF, ONNX_CPU, DEMO)
    ask_demo(session)


@nox.session
def tests(session: nox.Session) -> None:
    """Run every test that needs no GPU, but those that take minutes together."""
    install(session, *ALL, groups=("test", "onnx"))
    install_axe(session)
    session.run("pytest", *SIDE_BY_SIDE, "-m", "not gpu and not slow", *session.posargs)


@nox.session
def slow(session: nox.Session) -> None:
    """Run what ``tests`` leaves out, and on a machine with a GPU what needs one."""
    install(session, *ALL, groups=("test", "onnx"))
    session.run("pytest", "-m", "slow or gpu", *session.posargs)


@nox.session(default=False)
def gpu(session: nox.Session) -> None:
    """Run the tests that need a CUDA device; ``TORCH_BUILD=any`` installs a torch for it."""
    install(session, *ALL, groups=("test", "onnx"))
    session.run("pytest", "-m", "gpu", *session.posargs)


@nox.session(default=False)
def families(session: nox.Session) -> None:
    """Try every family of the installed transformers and write ``docs/reference/families.md``.

    Takes an hour of a processor, nearly all of it for exports. What was found before is kept with
    ``--resume``; names of model types are tried alone.
    """
    install(session, *ALL, groups=("test", "onnx"))
    records = Path(session.create_tmp()).resolve() / "records"
    session.chdir("tests")
    session.run("python", "-m", "census", str(records), "--page", *session.posargs)


@nox.session(default=False)
def attack(session: nox.Session) -> None:
    """Attack every declared field of every API for ten minutes; prints what each field costs.

    Arguments go to ``python -m attack``: ``--minutes``, ``--fields PATTERN``, ``--seed``. Without
    them, texts are also sent to the packaged model, whose tokenizer is a real one.
    """
    install(session, *TESTED, GUIDANCE, PDF, QUANTIZED, HF, ONNX_CPU, DEMO)
    session.chdir("tests")
    if session.posargs:
        session.run("python", "-m", "attack", *session.posargs)
        return
    apis = "tokenize|v1/(completions|chat/completions|messages|responses|embeddings)"
    texts = rf"^POST /({apis}) json:(prompt|input|messages\[\]\.content)$"
    session.run("python", "-m", "attack", "--minutes", "8")
    session.run("python", "-m", "attack", "--minutes", "2", "--model", "demo", "--fields", texts)


@nox.session(default=False)
def newest_llama(session: nox.Session) -> None:
    """Try the tests of vlmkit-llama on the newest xllamacpp, whose interface may have changed."""
    install(session, *ALL, groups=("test", "onnx"))
    session.install("-q", "--upgrade", "xllamacpp")
    tests, known = f"{LLAMA.partition('[')[0]}/tests", "not test_the_tested_version"
    session.run("pytest", tests, "-k", known, *session.posargs)


@nox.session
def contract(session: nox.Session) -> None:
    """Try every broken component on the contract that must detect it; ``tests`` tries a sample."""
    install(session, *TESTED, groups=("test",))
    needs_none = "not gpu and not torch"
    session.run("pytest", *SIDE_BY_SIDE, f"{TESTING}/tests", "-m", needs_none, *session.posargs)


@nox.session(default=False)
def mutate(session: nox.Session) -> None:
    """Mutate real components, and count the mutants that the contracts detect."""
    install(session, *ALL, groups=("test", "onnx"))
    session.env["PYTHONPATH"] = "tests"
    session.run("python", "-m", "mutants", *session.posargs)


@nox.session(default=False)
def quick(session: nox.Session) -> None:
    """Run for a minute the tests that the changed files are most likely to break.

    The change is what differs from ``main``, or the files that are named. What is installed stays
    as long as no ``pyproject.toml`` changes.
    """
    stated = b"".join(Path(path).read_bytes() for path in ("pyproject.toml", *METADATA))
    installed = Path(session.create_tmp()).resolve() / "installed"
    if not installed.is_file() or installed.read_bytes() != stated:
        install(session, *ALL, groups=("test", "onnx"))
        installed.write_bytes(stated)
    session.run("python", "-m", "quick", *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session
def core_alone(session: nox.Session) -> None:
    """Install the core without any backend and run its tests on the mock."""
    install(session, CORE, TESTING, MOCK, groups=("test",))
    backends = ("torch", "transformers", "tokenizers", "huggingface_hub")
    server = ("litestar", "uvicorn", "multipart", "prometheus_client", "vlmkit_server")
    for heavy in (*backends, *server):
        session.run(
            "python", "-c", f"import importlib.util as u; assert not u.find_spec({heavy!r})"
        )
    tests = [f"{path}/tests" for path in (CORE, TESTING, MOCK)]
    session.run("pytest", *tests, "-m", "not torch and not server", *session.posargs)


@nox.session
def torchvision(session: nox.Session) -> None:
    """Compare our image processors with those that want torchvision; try towers of timm with it."""
    install(session, *TESTED, HF, QUANTIZED, TORCH, groups=("test",))
    # Without what it requires: its builds want a torch of theirs, and pictures need none of that.
    session.install("-q", *TORCH_PIN, "pillow", "numpy")
    session.install("-q", "--no-deps", "torchvision==0.28.*", "timm>=1.0")
    tests = [f"{HF}/tests/test_torchvision.py", "tests/parity/test_timm_towers.py"]
    session.run("python", "tests/with_torchvision.py", *tests, *session.posargs)


@nox.session
def quantization_tools(session: nox.Session) -> None:
    """Compare the weights of quantized checkpoints with those of the tools that wrote them."""
    install(session, *TESTED, HF, QUANTIZED, TORCH_QUANTIZED, groups=("test",))
    session.install("-q", "bitsandbytes==0.50.*", *TORCH_PIN)
    session.run("pytest", "tests/test_quantization_tools.py", *session.posargs)


@nox.session
def triton(session: nox.Session) -> None:
    """Run the kernels of vlmkit-torch in Triton's interpreter, and compile them for GPUs."""
    install(session, *TESTED, HF, QUANTIZED, TORCH_QUANTIZED, groups=("test",))
    session.install("-q", "triton>=3.4", *TORCH_PIN)
    for interpret in ("1", "0"):
        tests = [
            "plugins/vlmkit-torch/tests/test_triton_linear.py",
            "plugins/vlmkit-torch/tests/test_triton_attention.py",
            "tests/parity/test_packed_weights.py",
        ]
        session.run(
            "pytest", *tests, "-k", "triton", *session.posargs, env={"TRITON_INTERPRET": interpret}
        )


@nox.session
def ray(session: nox.Session) -> None:
    """Run models on a small Ray Serve; on Linux it has a network of loopback alone.

    Ray's processes listen on all addresses, and end with the namespace of processes.
    """
    install(session, *TESTED, f"{RAY}[ray]")
    session.install("-q", "openai>=3", "pytest>=9", "pytest-timeout>=2.4", "hypothesis>=6.100")
    session.env["PYTHONPATH"] = "tests"
    tests = ("python", "-m", "pytest", "-W", "ignore", f"{RAY}/tests", *session.posargs)
    session.run(*loopback_alone(), *tests, external=True)


def loopback_alone() -> Sequence[str]:
    """Return how to run a command in namespaces of its own, where that is allowed."""
    command = shutil.which("unshare")
    if command is None:
        return []
    alone = [command, "--map-root-user", "--net", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*alone, "true"], check=False).returncode:  # noqa: S603 - as it is found
        return []
    return [*alone, "--mount-proc", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


@nox.session
def text_alone(session: nox.Session) -> None:
    """Install the text side without torch and run its tests."""
    install(session, *TESTED, QUANTIZED, HF, groups=("test",))
    session.run("python", "-c", "import importlib.util as u; assert not u.find_spec('torch')")
    session.run("pytest", f"{HF}/tests", "-m", "not torch", *session.posargs)


@nox.session
def onnx_alone(session: nox.Session) -> None:
    """Install the ONNX engine without torch, run its tests and serve the packaged model."""
    install(session, *TESTED, QUANTIZED, HF, ONNX_CPU, DEMO, groups=("test", "onnx"))
    session.run("python", "-c", "import importlib.util as u; assert not u.find_spec('torch')")
    tests = [f"{ONNX}/tests", f"{DEMO}/tests", "tests/test_end_to_end.py"]
    session.run("pytest", *tests, "-m", "not torch", *session.posargs)


@nox.session
@nox.parametrize("path", list(OLDEST), ids=[path.partition("[")[0] for path in OLDEST])
def oldest(session: nox.Session, path: str) -> None:
    """Run a distribution's quick tests with the oldest dependencies that it allows.

    What others require is as new as it can be: the oldest of one need not go with the oldest of
    another. vlmkit-torch is left out: most builds of the oldest torch are gigabytes of CUDA.
    """
    editable = [argument for name in OLDEST[path] for argument in ("-e", name)]
    groups = ("test", "onnx") if path == ONNX_CPU else ("test",)
    requirements = nox.project.dependency_groups(PROJECT, *groups)
    session.install("-q", *editable, *requirements, *lowest(path))
    tests = f"{path.partition('[')[0]}/tests"
    quick = "not torch and not gpu and not slow"
    session.run("pytest", *SIDE_BY_SIDE, tests, "-m", quick, *session.posargs)


def lowest(path: str) -> list[str]:
    """Return what a distribution requires, extras in brackets included, at its lower bounds."""
    folder, _, extras = path.partition("[")
    project = nox.project.load_toml(f"{folder}/pyproject.toml")["project"]
    stated = list(project["dependencies"])
    for extra in filter(None, extras.rstrip("]").split(",")):
        stated += project["optional-dependencies"][extra]
    found = [Requirement(text) for text in stated]
    return [
        f"{requirement.name}=={bound.version}"
        for requirement in found
        for bound in requirement.specifier
        if bound.operator == ">=" and not requirement.name.startswith("vlmkit")
    ]


@nox.session(default=False)
def clients_server(session: nox.Session) -> None:
    """Install the server that ``clients`` meet."""
    install(session, *TESTED, HF, ONNX_CPU, QUANTIZED, TORCH, DEMO, GUIDANCE, OLLAMA, GRPC)


@nox.session(default=False, requires=["clients_server"])
@nox.parametrize("client", list(CLIENTS), ids=list(CLIENTS))
def clients(session: nox.Session, client: str) -> None:
    """Try a client of others, as it is, on a server in an environment of its own."""
    session.install("-q", "pytest>=9", *CLIENTS[client])
    if alone := CLIENTS_ALONE.get(client):
        session.install("-q", "--no-deps", *alone)
    if packages := CLIENTS_OF_NODE.get(client):
        if not shutil.which("npm"):
            session.skip("Node is not installed")
        folder = str(Path(session.create_tmp()).resolve())  # clients run in folders of their own
        session.run("npm", "install", "--silent", "--prefix", folder, *packages, external=True)
        session.env["NODE_FOLDER"] = folder
    session.env["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it fetches prices when imported
    try_on_server(session, client)


@nox.session(default=False, requires=["clients_server"])
def schema(session: nox.Session) -> None:
    """Hold the server to its OpenAPI document with Schemathesis; takes minutes."""
    session.install("-q", "pytest>=9", "schemathesis>=4.32", "openapi-spec-validator>=0.9")
    try_on_server(session, "schemathesis")


def try_on_server(session: nox.Session, client: str) -> None:
    """Run a client's file on the server of ``clients_server``."""
    server = session.env_dir.resolve().with_name("clients_server")
    commands = os.pathsep.join(str(server / folder) for folder in ("bin", "Scripts"))
    session.env["SERVER_PYTHON"] = shutil.which("python", path=commands)
    tests = Path("tests/clients")
    options = ("-c", str(tests / "pytest.ini"), str(tests / f"with_{client}.py"))
    session.run("pytest", *options, *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, formatting and the direction of imports."""
    session.install("-q", *nox.project.dependency_groups(PROJECT, "lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.env["PYTHONPATH"] = os.pathsep.join(SOURCES)
    session.run("lint-imports")


@nox.session(default=False)
def structure(session: nox.Session) -> None:
    """Print the tables of structure and prose; ``--list NAME`` says what a number counts.

    ``--json FILE`` saves the numbers, ``--against FILE`` shows saved ones beside today's, and
    ``--record`` writes the ceilings that ``tests/test_prose.py`` holds the sources to.
    """
    session.install("-q", *nox.project.dependency_groups(PROJECT, "lint"))  # grimp is among them
    session.run("python", "-m", "structure", *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session
def types(session: nox.Session) -> None:
    """Check all types, strictly, as each system's standard library has them."""
    install(session, *ALL, groups=("test", "types"))
    for system in ("linux", "darwin", "win32"):
        options = ("--platform", system, "--cache-dir", f".mypy_cache/{system}")
        session.run("mypy", *options, *SOURCES)
    session.run("mypy", "examples/vlmkit-typical")
    projects = Path(session.create_tmp()).resolve() / "projects"
    shutil.rmtree(projects, ignore_errors=True)
    session.run("python", "tests/projects.py", str(projects))
    sources = sorted([*projects.glob("*/src"), *projects.glob("*/tests/*.py")])
    found = os.pathsep.join(str(path) for path in sources if path.is_dir())
    session.run(
        *("mypy", "--strict", "--config-file", os.devnull, *map(str, sources)),
        env={"MYPYPATH": found},
    )


@nox.session(default=False)
def reference(session: nox.Session) -> None:
    """Write the pages that are made of the sources: references, and the map of imports."""
    install(session, CORE, SERVER, TESTING, QUANTIZED)
    session.install("-q", "--no-deps", "-e", TORCH)  # its interfaces import no torch
    session.run("python", "tests/interfaces_page.py")
    session.run("python", "tests/architecture_page.py")
    session.run("python", "tests/fields_page.py")
    session.run("python", "tests/protocol_page.py")
    session.run("python", "tests/wire_page.py")


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """Build the documentation site into ``build/docs``; a broken link fails it.

    ``-- serve`` shows it on a local port instead, and builds it again when a page changes.
    """
    session.install("-q", "mkdocs-material>=9.6")
    config = ("--config-file", "site/mkdocs.yml")
    if session.posargs == ["serve"]:
        session.run("mkdocs", "serve", *config)
        return
    output = str(Path("build", "docs").resolve())
    session.run("mkdocs", "build", "--strict", *config, "--site-dir", output)


@nox.session(default=False)
def figures(session: nox.Session) -> None:
    """Record what the documentation shows, ``docs/figures``; names choose some terminals alone."""
    install(session, CORE, SERVER, QUANTIZED, HF, ONNX_CPU, DEMO, WEBUI)
    session.install("-q", "pyte>=0.8", "rich>=14", "selenium>=4.40")
    session.run("python", "benchmarks/terminals.py", *session.posargs)
    if not session.posargs:
        session.run("python", "benchmarks/web_page.py")


@nox.session(default=False)
def release(session: nox.Session) -> None:
    """Build sdists and wheels into ``dist``, check them, and try the wheels on every Python here.

    A build comes from what git knows, and its version from the tags of the repository.
    """
    session.install("-q", "build", "twine>=6", "check-wheel-contents>=0.6", *TORCH_PIN)
    shutil.rmtree("dist", ignore_errors=True)
    for path in PATHS:
        session.run("python", "-m", "build", "-q", "-o", "dist", path, silent=True)
    files = sorted(map(str, Path("dist").glob("*")))
    wheels = [name for name in files if name.endswith(".whl")]
    session.run("twine", "check", "--strict", *files)
    checked = [name for name in wheels if not Path(name).name.startswith("vlmkit-")]  # no code
    session.run("check-wheel-contents", *checked)
    session.run("python", "tests/release/contents.py", "dist")
    session.install("-q", "--force-reinstall", "--no-deps", *wheels)
    session.install("-q", "--find-links", "dist", *built(ALL), *TORCH_PIN)
    session.install("-q", "openai>=3")
    session.run("python", "tests/release/first_steps.py", PICTURE)
    for python in PYTHONS:
        session.notify(f"release_on-{python}")


@nox.session(default=False, python=PYTHONS, reuse_venv=False)
def release_on(session: nox.Session) -> None:
    """Install the wheels of ``dist`` alone, without torch, and do what a new user does."""
    without_torch = [path for path in ALL if path not in {TORCH_QUANTIZED, ONNX_EXPORT}]
    session.install("-q", "--find-links", "dist", *built([*without_torch, ONNX_CPU]))
    session.install("-q", "openai>=3")
    session.run("python", "tests/release/first_steps.py", PICTURE)


def built(paths: Sequence[str]) -> list[str]:
    """Return requirements of distributions, extras included, at the version in ``dist``."""
    (core,) = Path("dist").glob("vlmkit_core-*.whl")
    version = core.name.split("-")[1]
    return [f"{Path(path).name}=={version}" for path in paths]


@nox.session
def bench(session: nox.Session) -> None:
    """Measure vlmkit against its peers; arguments go to ``benchmarks/run.py``."""
    install(session, *ALL)
    session.install("-q", "openai>=2", "transformers[serving]>=5.20", *TORCH_PIN)
    session.run("python", "benchmarks/run.py", *session.posargs)


if __name__ == "__main__":
    nox.main()
