"""Models of a hub: checks before weights are downloaded, and the output on a terminal."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from stub_hub import Content, Large, StubHub, stub_hub, weights
from terminal import Screen, run_on_terminal

pytest.importorskip("vlmkit_hf")
pytestmark = pytest.mark.posix

GB = 10**9
NUM_FILES = 7
FILES = [f"model-0000{i + 1}-of-0000{NUM_FILES}.safetensors" for i in range(NUM_FILES)]
INDEX = {f"model.layers.{i}.{j}.weight": FILES[i % NUM_FILES] for i in range(32) for j in range(9)}
Run = Callable[..., subprocess.CompletedProcess[str]]
DEMO = Path(__file__).parents[1] / "plugins/vlmkit-demo/src/vlmkit_demo"
QUESTION = ("What is in this picture?", "--image", str(DEMO / "pictures/shapes.png"))


def large_model(config: Mapping[str, Any]) -> dict[str, Content]:
    """Return a model of 14 GB, as large ones are laid out."""
    texts: dict[str, Any] = {
        "config.json": config,
        "generation_config.json": {},
        "tokenizer_config.json": {"chat_template": "{{ messages }}"},
        "model.safetensors.index.json": {"weight_map": INDEX},
    }
    small = {name: json.dumps(content).encode() for name, content in texts.items()}
    shards = {name: weights(2 * GB, 45) for name in FILES}
    return {**small, **shards, "tokenizer.json": Large(b'{"model": ', 9_000_000)}


def demo() -> dict[str, Content]:
    """Return the files of the packaged model, which has its weights and its graphs."""
    return {path.name: path.read_bytes() for path in (DEMO / "checkpoint").iterdir()}


MAMBA = {"model_type": "falcon_mamba", "architectures": ["FalconMambaForCausalLM"]}
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "max_position_embeddings": 4096,
}


@pytest.fixture
def hub() -> Iterator[StubHub]:
    with stub_hub() as made:
        yield made


@pytest.fixture
def environ(hub: StubHub, tmp_path: Path) -> dict[str, str]:
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()
    }
    return {**kept, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "TERM": "xterm"}


@pytest.fixture
def run(environ: dict[str, str], tmp_path: Path) -> Run:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "vlmkit", *arguments],
            env=environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=600,
        )

    return run


@pytest.mark.parametrize(
    "command",
    [
        ("ask", "org/large", "Hello"),
        ("models", "pull", "org/large"),
        ("models", "fetch", "org/large"),
        ("doctor", "org/large"),
        ("models", "info", "org/large"),
        ("verify", "org/large"),
    ],
    ids=" ".join,
)
def test_an_unsupported_model_downloads_less_than_a_megabyte(
    command: tuple[str, ...], hub: StubHub, run: Run
) -> None:
    hub.add("org/large", main=large_model(MAMBA))
    done = run(*command)

    assert done.returncode == (0 if command[1] == "info" else 1), done.stderr
    assert hub.num_sent_bytes < 1_000_000
    assert "Traceback" not in done.stderr
    if command[1] != "info":
        assert "Mamba" in done.stdout + done.stderr
    assert run("models", "list", "--json").stdout.count("org/large") == 0


@pytest.mark.slow
def test_doctor_and_info_read_headers_instead_of_weights(hub: StubHub, run: Run) -> None:
    hub.add("org/large", main=large_model(LLAMA))
    told = json.loads(run("models", "info", "org/large", "--json").stdout)

    assert told["parameters"] == NUM_FILES * 45 * (2 * GB // 45 // 2)
    assert told["weight_bytes"] == sum(len(weights(2 * GB, 45)) for _ in FILES)
    assert told["weight_files"] == NUM_FILES
    assert told["path"] is None
    assert hub.num_sent_bytes < 11_000_000  # of which the vocabulary is nine


def test_doctor_and_info_examine_a_model_before_its_download(hub: StubHub, run: Run) -> None:
    pytest.importorskip("onnxruntime")
    hub.add("org/small", main=demo())
    onnx = ("--set", "engine.use=onnx")
    doctor = run("doctor", "org/small", "--json", *onnx)
    info = json.loads(run("models", "info", "org/small", "--json", *onnx).stdout)

    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    report = json.loads(doctor.stdout)
    chosen = {
        each["component"]: each["provider"] for each in report["verdicts"] if each["is_chosen"]
    }
    assert report["unserved"] == []
    assert (chosen["engine"], chosen["media_encoder"], chosen["tokenizer"]) == (
        "onnx",
        "onnx",
        "hf",
    )
    assert (info["has_chat_template"], info["takes_images"], info["path"]) == (True, True, None)
    assert hub.num_sent_bytes < 1_000_000
    assert "org/small" not in run("models", "list").stdout


def serve_check(run: Run, folder: Path, model: str, *options: str) -> tuple[int, str]:
    """Check a config that names a model; return the exit code and the output."""
    config = folder / "vlmkit.toml"
    config.write_text(f'model = "{model}"\n[server]\nport = 0\n')
    done = run("serve", "--check", "--config", str(config), *options)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def test_the_config_check_asks_the_hub_whether_a_model_can_be_served(
    hub: StubHub, run: Run, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    hub.add("org/small", main=demo())
    hub.add("org/large", main=large_model(MAMBA))
    refused = serve_check(run, tmp_path, "org/large")
    accepted = serve_check(run, tmp_path, "org/small")
    absent = serve_check(run, tmp_path, "org/none")

    assert refused[0] == 1
    assert "no installed engine can serve this model" in refused[1]
    assert "Mamba" in refused[1]
    assert (accepted[0], "valid: it would listen on" in accepted[1]) == (0, True), accepted[1]
    assert "note: the weights of 'org/small' are fetched when it starts" in accepted[1]
    assert absent[0] == 1
    assert "'org/none' does not exist on the hub" in absent[1]
    assert hub.num_sent_bytes < 1_000_000
    assert run("models", "list", "--json").stdout.count("org/") == 0


@pytest.mark.slow
def test_the_config_check_asks_no_hub_about_a_local_model(
    hub: StubHub, run: Run, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    hub.add("org/small", main=demo())
    (path,) = run("models", "pull", "org/small").stdout.splitlines()
    num_requests = len(hub.requests)
    for model in ("org/small", path):
        code, output = serve_check(run, tmp_path, model)
        assert code == 0, output
        assert "note:" not in output
    wrong = serve_check(run, tmp_path, "org/small", "--set", "engine.precision=w1")

    assert wrong[0] == 1
    assert "precision" in wrong[1]
    assert len(hub.requests) == num_requests


@pytest.mark.slow
def test_a_local_model_needs_no_request_to_the_hub(
    hub: StubHub, run: Run, environ: dict[str, str]
) -> None:
    pytest.importorskip("onnxruntime")
    hub.add("org/small", main=demo())
    ask = ("ask", "org/small", *QUESTION)
    fetched = run(*ask)
    num_requests = len(hub.requests)
    again = run(*ask)

    assert fetched.returncode == 0, fetched.stderr
    assert (again.returncode, again.stdout) == (0, fetched.stdout)
    for command in (["doctor", "org/small"], ["models", "info", "org/small"], ["models", "list"]):
        assert run(*command).returncode == 0
    assert len(hub.requests) == num_requests

    (path,) = run("models", "pull", "org/small").stdout.splitlines()
    assert len(hub.requests) > num_requests
    assert Path(path, "config.json").is_file()
    removed = run("models", "rm", "org/small")
    assert (removed.returncode, removed.stdout) == (0, "")
    assert re.fullmatch(r"deleted org/small: [\d.]+ MiB\n", removed.stderr)
    assert "org/small" not in run("models", "list").stdout
    assert not Path(path).exists()


def test_pull_fetches_the_newest_commit_and_load_uses_the_local_one(hub: StubHub, run: Run) -> None:
    files = {"model.safetensors": weights(1000), "tokenizer.json": b"{}"}
    hub.add("org/m", main={**files, "config.json": b'{"model_type": "llama", "a": 1}'})
    first = run("models", "pull", "--force", "org/m").stdout
    hub.add("org/m", main={**files, "config.json": b'{"model_type": "llama", "a": 2}'})
    second = run("models", "pull", "--force", "org/m").stdout

    assert '"a": 1' in Path(first.strip(), "config.json").read_text()
    assert '"a": 2' in Path(second.strip(), "config.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "problem", "hint"),
    [
        (("org/other",), "model 'org/other' is not on this disk", "`vlmkit models list` shows"),
        (("org/m", "--revision", "v9"), "no revision 'v9' on this disk", "it has "),
        (("{folder}",), "is a folder or file that no hub fetched", "delete it"),
        (("./nowhere",), "model folder './nowhere' does not exist", "check the path"),
    ],
)
def test_only_models_downloaded_from_a_hub_are_removed(
    arguments: tuple[str, ...], problem: str, hint: str, hub: StubHub, run: Run, tmp_path: Path
) -> None:
    hub.add("org/m", main={"config.json": b"{}", "model.safetensors": weights(1000)})
    assert run("models", "pull", "--force", "org/m").returncode == 0
    (tmp_path / "config.json").write_text("{}")
    removed = run("models", "rm", *(a.format(folder=tmp_path) for a in arguments))

    assert removed.returncode == 1
    assert problem in removed.stderr
    assert f"hint: {hint}" in removed.stderr
    assert "org/m" in run("models", "list").stdout


def test_download_progress_is_one_terminal_line_that_disappears(
    hub: StubHub, environ: dict[str, str]
) -> None:
    sizes = {f"model-0000{i}-of-00006.safetensors": i * 400_000 for i in range(1, 7)}
    files = {name: weights(size) for name, size in sizes.items()}
    index = {"weight_map": {f"w{i}": name for i, name in enumerate(files)}}
    small = {"config.json": b"{}", "model.safetensors.index.json": json.dumps(index).encode()}
    hub.add("an-organization/a-model-with-a-long-name", main={**small, **files})
    hub.bytes_per_s = 1_000_000
    pull = ["models", "pull", "--force", "an-organization/a-model-with-a-long-name"]
    code, written = run_on_terminal([sys.executable, "-m", "vlmkit", *pull], environ)
    before, _, after = written.partition("fetched in")
    screen = Screen()
    screen.write(before)

    assert code == 0
    assert len(set(re.findall(r"(\d+)%", before))) > 3  # it was seen to move
    assert "\x1b[A" not in before  # which more than one bar would need
    assert screen.widest <= 80
    assert screen.shown() == []
    timing, path = after.split()[0], after.splitlines()[1]
    assert float(timing) > 0
    assert Path(path).is_dir()


@pytest.mark.slow
def test_an_answer_after_a_download_starts_on_its_own_line(
    hub: StubHub, environ: dict[str, str]
) -> None:
    pytest.importorskip("onnxruntime")
    hub.add("org/small", main=demo())
    hub.bytes_per_s = 8_000_000
    ask = [sys.executable, "-m", "vlmkit", "ask", "org/small", *QUESTION]
    code, written = run_on_terminal(ask, environ)
    screen = Screen()
    screen.write(written)

    assert code == 0, written
    assert "fetching small" in written
    assert len(screen.shown()) == 1, screen.shown()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("models", "pul", "org/m"), "Did you mean 'pull'?"),
        (("modles", "list"), "Did you mean 'models'?"),
        (("ask", "demo", "Hello", "--max-token", "3"), "--max-tokens"),
        (("config", "chek"), "Did you mean 'check'?"),
        (("keys", "lst"), "Did you mean 'list'?"),
        (("plugins", "chek"), "Did you mean 'check'?"),
        (("ask", "demo", "Hi", "--set", "engine.num_thread=2"), "did you mean 'num_threads'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_misspelt_command_or_option_suggests_the_nearest(
    arguments: tuple[str, ...], told: str, run: Run
) -> None:
    done = run(*arguments)

    assert done.returncode == 2
    assert told in done.stderr


def test_a_pull_without_the_hub_is_an_error(
    hub: StubHub, run: Run, environ: dict[str, str]
) -> None:
    hub.add("org/m", main={"config.json": b"{}", "model.safetensors": weights(1000)})
    assert run("models", "pull", "--force", "org/m").returncode == 0
    environ["HF_ENDPOINT"] = "http://127.0.0.1:9"
    refused = run("models", "pull", "--force", "org/m")

    assert refused.returncode == 1
    assert "the hub cannot be asked for the newest commit of model 'org/m'" in refused.stderr
    assert "fetched in" not in refused.stderr


@pytest.mark.slow
@pytest.mark.torch
def test_the_memory_of_a_hubs_model_is_planned_from_less_than_a_megabyte(
    hub: StubHub, run: Run
) -> None:
    hub.add("org/large", main=large_model(LLAMA))
    load = ("--context", "4096", "--sequences", "2", "--memory", "64G")
    done = run("plan", "org/large", "--json", *load, "--set", "engine.use=torch")
    assert done.returncode == 0, done.stderr
    assert hub.num_sent_bytes < 1_000_000
    report = json.loads(done.stdout)
    needs = {each["name"]: each["num_bytes"] for each in report["needs"]}
    num_parameters = 6_738_415_616  # of a Llama with 7 billion
    assert needs["weights"] in (
        pytest.approx(2 * num_parameters, rel=1e-6),
        pytest.approx(4 * num_parameters, rel=1e-6),
    )
    item_bytes = 2 if needs["weights"] < 3 * num_parameters else 4
    assert needs["KV cache"] == 2 * 4096 * (2 * 32 * 4096 * item_bytes)
    assert report["fit"]["fits"]
    assert run("models", "list", "--json").stdout.count("org/large") == 0


@pytest.mark.torch
def test_an_unsupported_model_is_not_planned(hub: StubHub, run: Run) -> None:
    hub.add("org/large", main=large_model(MAMBA))
    done = run("plan", "org/large")
    assert done.returncode == 1
    assert "Mamba" in done.stderr
    assert hub.num_sent_bytes < 1_000_000
