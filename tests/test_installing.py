"""Installing what documents and hints name is enough for an answer, in a fresh environment.

Distributions of vlmkit come from wheels that are built first, or from a copy of the source tree.
Everything else comes from pip's usual index.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.posix, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[1]
FOLDERS = sorted([*ROOT.glob("packages/*/"), *ROOT.glob("plugins/*/")])
DOCUMENTS = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("[ep]*/*/README.md")]
INSTALLS = re.compile(r"^ *(?:\$ )?(pip install .*)$", re.MULTILINE)
IN_SOURCES = "./packages/vlmkit-core"
DEMO = ROOT / "plugins/vlmkit-demo/src/vlmkit_demo"
ASK = ("What is in this picture?", "--image", str(DEMO / "pictures/shapes.png"))
SEEN = "circle"
RELEASED = (
    "pip install vlmkit vlmkit-demo",
    "pip install vlmkit vlmkit-hf",
    "pip install vlmkit vlmkit-mock vlmkit-guidance vlmkit-mcp vlmkit-monitor vlmkit-pdf",
    'pip install vlmkit "vlmkit-onnx[cpu]"',
    "pip install vlmkit vlmkit-torch",
)
"""What documents will say to install once an index has a release."""


def documented() -> list[str]:
    """Return the commands of documents that install distributions of vlmkit, each once."""
    found = [line for document in DOCUMENTS for line in INSTALLS.findall(document.read_text())]
    own = {line for line in found if re.search(r"\bvlmkit|\./", line) and ".[" not in line}
    return sorted(line for line in own if "[gpu]" not in line)  # what nothing here could try


@dataclass
class Environment:
    """A virtual environment, and how a user's shell finds it.

    Attributes:
        place: its folder.
        cwd: where commands run.
        environ: their environment.
        is_active: whether the shell knows the environment's commands.
    """

    place: Path
    cwd: Path
    environ: Mapping[str, str]
    is_active: bool = True
    log: list[str] = field(default_factory=list)

    def run(self, command: str, *, fails: bool = False) -> str:
        """Run a line of a shell, and return all that it writes."""
        environ = dict(self.environ)
        if self.is_active:
            environ["PATH"] = f"{self.place / 'bin'}{os.pathsep}{environ['PATH']}"
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self.cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=3000,
            check=False,
        )
        assert "Traceback" not in done.stdout, done.stdout
        assert (done.returncode != 0) is fails, f"{command}\n{done.stdout}"
        return done.stdout

    def vlmkit(self, *arguments: str, fails: bool = False) -> str:
        """Run a command of vlmkit."""
        own = "vlmkit" if self.is_active else str(self.place / "bin/vlmkit")
        return self.run(shlex.join([own, *arguments]), fails=fails)


Make = Callable[..., Environment]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel of each distribution."""
    place = tmp_path_factory.mktemp("wheels")
    for folder in FOLDERS:
        build = [sys.executable, "-m", "build", "-q", "--wheel", "--no-isolation", "-o", str(place)]
        subprocess.run([*build, str(folder)], check=True, capture_output=True)
    return place


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the source tree, as far as git knows it or may."""
    place = tmp_path_factory.mktemp("clone")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, place / name)
    return place


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return a shell environment without vlmkit; torch is the build for CPUs."""
    ours = ("VLMKIT", "PYTHON", "VIRTUAL_ENV", "UV_", "PIPX_", "HF_", "XDG_CACHE")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    beside = str(Path(sys.executable).parent)
    kept["PATH"] = os.pathsep.join(p for p in kept["PATH"].split(os.pathsep) if p != beside)
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("torch==2.13.*\n")
    home = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HF_HOME": str(tmp_path / "hf")}
    return {**kept, **home, "PIP_CONSTRAINT": str(constraints), "HF_HUB_OFFLINE": "1"}


@pytest.fixture
def made(tmp_path: Path, environ: dict[str, str]) -> Make:
    """Return a function that makes a fresh environment, which may know a folder of wheels."""

    def make(
        wheels: Path | None = None, cwd: Path = tmp_path, *, is_active: bool = True
    ) -> Environment:
        place = tmp_path / "environment"
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        links = [os.environ.get("PIP_FIND_LINKS", ""), str(wheels or "")]
        known = {**environ, "PIP_FIND_LINKS": " ".join(filter(None, links))}
        return Environment(place, cwd, known, is_active)

    return make


def answers(environment: Environment) -> None:
    """Run a question on the installed distributions, or at least import them."""
    listed = environment.vlmkit("plugins", "--check")
    if re.search(r"^engine +(torch|onnx) +\S+ +\S+ +usable$", listed, re.MULTILINE):
        model = (
            "demo"
            if re.search(r"^model +demo\b", listed, re.MULTILINE)
            else str(DEMO / "checkpoint")
        )
        assert SEEN in environment.vlmkit("ask", model, *ASK)
    elif re.search(r"^model +mock\b", listed, re.MULTILINE):
        assert "Say this" in environment.vlmkit("ask", "mock", "Say this back to me.")


@pytest.mark.parametrize("command", [*documented(), *RELEASED])
def test_the_install_commands_of_a_document_give_a_model_that_answers(
    command: str, made: Make, wheels: Path, clone: Path
) -> None:
    in_clone = "./" in command
    environment = made(None if in_clone else wheels, clone)
    if in_clone and IN_SOURCES not in command:
        environment.run(min((each for each in documented() if IN_SOURCES in each), key=len))
    environment.run(command)
    answers(environment)


def told_command(said: str) -> str:
    """Return the install command that `vlmkit models list` prints for a model."""
    found = re.search(r"^none; try: (.*), or vlmkit models pull", said, re.MULTILINE)
    assert found, said
    return found[1]


NO_MODEL = ("models", "list")


def test_hints_of_an_index_install_name_the_index(made: Make, wheels: Path) -> None:
    environment = made(wheels)
    environment.run("pip install vlmkit")
    command = told_command(environment.vlmkit(*NO_MODEL))

    assert command == "pip install vlmkit-demo"
    environment.run(command)
    answers(environment)


def test_hints_of_a_wheel_install_name_the_folder_of_wheels(made: Make, wheels: Path) -> None:
    environment = made()
    (wheel,) = wheels.glob("vlmkit-0*.whl")
    environment.run(f"pip install --find-links {wheels} {wheel}")
    command = told_command(environment.vlmkit(*NO_MODEL))

    assert command == f"pip install --find-links {wheels} vlmkit-demo"
    environment.run(command)
    answers(environment)


@pytest.mark.parametrize("flag", ["", "-e "])
def test_hints_of_a_source_install_name_the_source_folders(
    flag: str, made: Make, clone: Path
) -> None:
    environment = made(cwd=clone)
    environment.run(f"pip install {flag}{IN_SOURCES}")
    command = told_command(environment.vlmkit(*NO_MODEL))

    assert command.startswith(f"pip install {flag}{clone}/plugins/vlmkit-demo")
    environment.run(command)
    answers(environment)


def test_hints_name_an_environment_that_is_not_on_the_path(made: Make, wheels: Path) -> None:
    environment = made(wheels, is_active=False)
    environment.run(f"{environment.place}/bin/pip install vlmkit")
    command = told_command(environment.vlmkit(*NO_MODEL))

    own = re.escape(f"{environment.place}/bin/python")
    assert re.fullmatch(rf"{own}[\d.]* -m pip install vlmkit-demo", command), command
    environment.run(command)
    answers(environment)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """Install uv and pipx, and return the folder of their commands."""
    place = tmp_path / "tools"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    subprocess.run([str(place / "bin/pip"), "install", "-q", "uv", "pipx"], check=True)
    return place / "bin"


@pytest.mark.parametrize(
    ("install", "place", "told"),
    [
        (
            "uv venv {own} && uv pip install --python {own} vlmkit",
            "own",
            "uv pip install --python {own}/bin/python vlmkit-demo",
        ),
        (
            "uv tool install vlmkit",
            "uv/vlmkit",
            "uv tool install vlmkit --with vlmkit-demo",
        ),
        ("pipx install vlmkit", "pipx/venvs/vlmkit", "pipx inject vlmkit vlmkit-demo"),
    ],
    ids=["uv venv", "uv tool", "pipx"],
)
def test_hints_name_the_installer_of_the_environment(
    install: str,
    place: str,
    told: str,
    tmp_path: Path,
    tools: Path,
    environ: dict[str, str],
    wheels: Path,
) -> None:
    links = [os.environ.get("PIP_FIND_LINKS", ""), str(wheels)]
    own = tmp_path / "own"
    environ |= {
        "PATH": f"{tools}{os.pathsep}{environ['PATH']}",
        "PIP_FIND_LINKS": " ".join(filter(None, links)),
        "UV_FIND_LINKS": str(wheels),
        "UV_TOOL_DIR": str(tmp_path / "uv"),
        "UV_TOOL_BIN_DIR": str(tmp_path / "commands"),
        "UV_PYTHON": sys.executable,
        "PIPX_HOME": str(tmp_path / "pipx"),
        "PIPX_BIN_DIR": str(tmp_path / "commands"),
    }
    environment = Environment(tmp_path / place, tmp_path, environ, is_active=False)
    environment.run(install.format(own=own))
    command = told_command(environment.vlmkit(*NO_MODEL))

    assert command == told.format(own=own)
    environment.run(command)
    answers(environment)


def only_weights(place: Path) -> Path:
    """Copy the packaged model without its graphs."""
    place.mkdir()
    for path in (DEMO / "checkpoint").iterdir():
        if path.suffix == ".json" or path.name in ("model.safetensors", "chat_template.jinja"):
            shutil.copyfile(path, place / path.name)
    (place / "vlmkit_onnx.json").unlink()
    (place / "vlmkit_text.json").unlink(missing_ok=True)
    return place


def in_sentencepiece(place: Path) -> Path:
    """Copy the packaged model with a vocabulary of SentencePiece alone."""
    sentencepiece = pytest.importorskip("sentencepiece")
    only_weights(place)
    (place / "tokenizer.json").unlink()
    texts = iter(["a red circle and a blue square", "what is in this picture"] * 50)
    with (place / "tokenizer.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=texts, model_writer=file, vocab_size=40, hard_vocab_limit=False
        )
    return place


@dataclass(frozen=True)
class Hint:
    """A hint, and the effect of following it.

    Attributes:
        installed: the distributions at the start.
        asked: the vlmkit command that prints the hint; ``{model}`` in it is a folder.
        told: the distributions that the hint names.
        model: makes the folder.
        removed: the distributions to uninstall after that.
    """

    installed: str
    asked: tuple[str, ...]
    told: str
    model: Callable[[Path], Path] = only_weights
    removed: str = ""


ASK_MODEL = ("ask", "{model}", *ASK)
HINTS = {
    "no model": Hint("vlmkit", ("ask",), "vlmkit-demo"),
    "no hub": Hint("vlmkit", ("ask", "org/name", "Hello"), "vlmkit-hf"),
    "no engine": Hint("vlmkit vlmkit-hf", ASK_MODEL, "vlmkit-torch"),
    "no onnxruntime": Hint("vlmkit vlmkit-onnx", ASK_MODEL, '"vlmkit-onnx[cpu,export]"'),
    "no exporter": Hint('vlmkit "vlmkit-onnx[cpu]"', ASK_MODEL, '"vlmkit-onnx[export]"'),
    "no transformers": Hint(
        'vlmkit "vlmkit-onnx[cpu]"', ("doctor", "{model}"), "vlmkit-hf", removed="transformers"
    ),
    "no torch": Hint("vlmkit vlmkit-torch", ASK_MODEL, "vlmkit-torch", removed="torch"),
    "no converter": Hint(
        'vlmkit "vlmkit-onnx[cpu]"',
        ("doctor", "{model}"),
        '"vlmkit-hf[convert]"',
        in_sentencepiece,
    ),
    "no pytest": Hint("vlmkit vlmkit-mock", ("plugins", "check", "mock"), '"vlmkit-testing"'),
    "no OpenTelemetry": Hint("vlmkit vlmkit-monitor", ("plugins",), '"vlmkit-monitor[otlp]"'),
}


@pytest.mark.parametrize("name", HINTS)
def test_installing_what_a_hint_names_adds_the_missing_package(
    name: str, made: Make, wheels: Path, tmp_path: Path
) -> None:
    hint = HINTS[name]
    environment = made(wheels)
    environment.run(f"pip install {hint.installed}")
    if hint.removed:
        environment.run(f"pip uninstall -y {hint.removed}")
    model = str(hint.model(tmp_path / "model"))
    asked = [word.format(model=model) for word in hint.asked]
    said = environment.run(f"vlmkit {shlex.join(asked)} || true")
    told = f"pip install {hint.told}"
    assert told in said

    environment.run(told)
    assert told not in environment.run(f"vlmkit {shlex.join(asked)} || true")
    if hint.asked == ASK_MODEL:
        assert SEEN in environment.vlmkit(*asked)
