"""Each command of the README, the tutorials and the how-to pages runs, or the page says why not.

A server that a block starts gets a free port, and ends once its model is ready. ``pip`` installs
nothing here, and ``git`` pulls nothing: ``pip`` must name folders of the repository.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import PIL.Image
import pytest

from test_docs import NOT_RUN, served

ROOT = Path(__file__).parents[1]
PAGES = ["README.md"] + [
    str(page.relative_to(ROOT))
    for folder in ("tutorial", "how-to")
    for page in sorted((ROOT / "docs" / folder).glob("*.md"))
]
PICTURES = ROOT / "plugins/vlmkit-demo/src/vlmkit_demo/pictures"
SHELL = r"""
set -e
pip() {
    for word in "$@"; do
        case "$word" in ./*) path="${word%%[*}"; test -f "$ROOT/$path/pyproject.toml" ;; esac
    done
}
vlmkit() {
    case " $* " in *" --check "*) ;; " serve "*)
        "$PYTHON" -m vlmkit "$@" --port 0 2> serve.log &
        server=$!
        until grep -q " is ready" serve.log; do
            kill -0 $server || { cat serve.log >&2; return 1; }
            sleep 0.1
        done
        kill -TERM $server
        wait $server
        return ;;
    esac
    "$PYTHON" -m vlmkit "$@"
}
python() { "$PYTHON" "$@"; }
git() { test "$1" = pull; }
"""

DOCS = "tests/test_docs.py"
CLI = "packages/vlmkit-core/tests/test_cli.py"
VERIFY = "packages/vlmkit-testing/tests/test_verify.py"
CERTIFICATES = "packages/vlmkit-server/tests/test_tls.py"
WORKERS = "plugins/vlmkit-grpc/tests/test_guide.py"
ON_RAY = "plugins/vlmkit-ray/tests/test_serve_command.py"
UNIT = "packages/vlmkit-server/tests/test_documented_config.py"
ELSEWHERE = {
    "README.md": {
        0: f"{DOCS}::test_the_two_commands_of_the_readme_name_nox_sessions",
        1: f"{DOCS}::test_the_two_commands_of_the_readme_name_nox_sessions",
    },
    "docs/tutorial/first-plugin.md": {
        1: f"{DOCS}::test_the_first_plugin_of_the_tutorial_loads_and_answers",
    },
    "docs/tutorial/public-server.md": dict.fromkeys(
        range(13), f"{DOCS}::test_the_tutorial_of_a_public_server_works_as_written"
    ),
    "docs/how-to/configure.md": {2: f"{CLI}::test_commands_of_the_guide_that_use_the_mock_run"},
    "docs/how-to/constrain.md": {
        0: f"{DOCS}::test_the_command_of_the_page_on_constraints_answers_in_json_of_its_schema"
    },
    "docs/how-to/folder-of-pictures.md": {
        0: f"{DOCS}::test_the_command_for_a_folder_of_images_writes_a_line_for_each"
    },
    "docs/how-to/run-a-service.md": {
        1: f"{UNIT}::test_the_guide_checks_the_config_before_it_starts_the_unit"
    },
    "docs/how-to/secure-a-server.md": {
        3: f"{CERTIFICATES}::test_the_checklist_of_the_guide_for_public_servers_works"
    },
    "docs/how-to/several-machines.md": {
        **dict.fromkeys(
            range(1, 4), f"{WORKERS}::test_the_commands_start_a_worker_and_a_gateway_that_answers"
        ),
        **dict.fromkeys(
            (5, 6),
            f"{WORKERS}::test_the_commands_start_an_encoder_and_a_server_that_sends_images_to_it",
        ),
        8: f"{ON_RAY}::test_the_command_of_the_guide_serves_the_models_of_its_config",
    },
    "docs/how-to/verify.md": {2: f"{VERIFY}::test_commands_of_the_how_to_page_run_on_the_mock"},
    "docs/how-to/write-a-plugin.md": {
        0: f"{DOCS}::test_the_plugin_guide_starts_with_the_output_of_the_command",
        1: f"{DOCS}::test_the_plugin_guide_starts_with_the_output_of_the_command",
        2: f"{DOCS}::test_a_plugin_of_the_guide_works_without_installation",
    },
}
"""The blocks that other tests run, by page and number."""
HERE = {
    "README.md": [2],
    "docs/tutorial/first-hour.md": [0, 1, 2, 3],
    "docs/tutorial/first-plugin.md": [0],
    "docs/how-to/cache-aware-routers.md": [0],
    "docs/how-to/configure.md": [0],
    "docs/how-to/hub-models.md": [1],
    "docs/how-to/observe.md": [0, 1, 2, 3],
    "docs/how-to/run-a-service.md": [0],
    "docs/how-to/secure-a-server.md": [0, 1, 2],
    "docs/how-to/serve-files-and-batches.md": [0, 1, 2],
    "docs/how-to/serve.md": [0],
    "docs/how-to/several-machines.md": [0, 7],
    "docs/how-to/test-a-client.md": [0, 1],
    "docs/how-to/upgrade.md": [0, 1],
    "docs/how-to/use-the-web-page.md": [0],
}
"""The blocks that run as they are, in one folder, in the order of the page."""
WITH_OWN_TEST = {
    "docs/how-to/configure.md": [1],
    "docs/how-to/measure-a-server.md": [0, 1],
    "docs/how-to/serve.md": [1],
    "docs/how-to/verify.md": [0, 1],
}
"""The blocks that a test below runs."""


def blocks(page, language="console"):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def in_shell(text, folder, **environ):
    """Run commands in a shell of a clone's environment; return what they print."""
    own = {"PYTHON": sys.executable, "ROOT": str(ROOT), "BROWSER": "true %s"}
    done = subprocess.run(
        ["bash", "-c", f"{SHELL}\n{text}"],
        cwd=folder,
        env=os.environ | own | environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_commands_is_run_by_a_test_or_the_page_says_why_not(page):
    found, unrun = blocks(page), NOT_RUN.findall((ROOT / page).read_text())
    run = {*ELSEWHERE.get(page, {}), *HERE.get(page, ()), *WITH_OWN_TEST.get(page, ())}
    assert run <= set(range(len(found)))
    missing = [text for number, text in enumerate(found) if number not in run and text not in unrun]
    assert missing == []


@pytest.mark.parametrize(
    ("page", "test"),
    sorted({(page, test) for page, tests in ELSEWHERE.items() for test in tests.values()}),
)
def test_the_test_that_runs_a_block_exists_and_reads_its_page(page, test):
    file, _, name = test.partition("::")
    text = (ROOT / file).read_text()
    assert f"def {name}(" in text
    assert page.rpartition("/")[2] in text


def make_folder(folder, page):
    """Write the files that a page's commands read."""
    for picture in PICTURES.iterdir():
        shutil.copy(picture, folder)
    (folder / "plugins/vlmkit-demo/src/vlmkit_demo").mkdir(parents=True)
    shutil.copytree(PICTURES, folder / "plugins/vlmkit-demo/src/vlmkit_demo/pictures")
    config = blocks(page, "toml")
    is_of_page = page == "docs/how-to/configure.md"
    (folder / "vlmkit.toml").write_text(config[0] if is_of_page else 'model = "demo"\n')
    body = {"model": "mock", "messages": [{"role": "user", "content": "hello"}]}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (folder / "requests.jsonl").write_text(json.dumps(line))


@pytest.mark.posix
@pytest.mark.torch
@pytest.mark.parametrize("page", HERE)
def test_the_blocks_of_a_page_run_in_order(page, tmp_path):
    make_folder(tmp_path, page)
    found = blocks(page)
    text = "\n".join(found[number] for number in HERE[page])
    text = re.sub(r"^(python3 -m venv|\. )\S+$", "true", text, flags=re.MULTILINE)
    in_shell(text, tmp_path)


def test_the_error_of_the_guide_is_the_error_of_the_command(tmp_path):
    command, *lines = blocks("docs/how-to/configure.md")[1].splitlines()
    done = subprocess.run(
        [sys.executable, "-m", *command.removeprefix("$ ").split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == lines


@pytest.mark.posix
def test_the_guide_to_measuring_runs_on_a_server_with_shorter_times(tmp_path):
    page = "docs/how-to/measure-a-server.md"
    with served(["serve", "mock"], tmp_path) as url:
        text = re.sub(r"http://127\.0\.0\.1:800\d", url, "\n".join(blocks(page)))
        in_shell(text.replace("--seconds 60", "--seconds 2"), tmp_path)
    for name in ("a.json", "b.json"):
        assert json.loads((tmp_path / name).read_text())
    for name in ("b.svg", "both.svg"):
        assert (tmp_path / name).read_text().startswith("<svg")


@pytest.mark.posix
def test_the_commands_that_load_and_unload_a_model_do_so(tmp_path):
    load, unload = blocks("docs/how-to/serve.md")[1].splitlines()
    (tmp_path / "vlmkit.toml").write_text(
        '[[models]]\nmodel = "mock"\nload = "start"\n[[models]]\nmodel = "mock"\nname = "large"\n'
        '[server.fleet]\nload = "use"\nmanage = true\n'
    )
    with served(["serve", "--config", "vlmkit.toml"], tmp_path) as url:
        for command, is_loaded in ((load, True), (unload, False)):
            answer = in_shell(command.replace("http://127.0.0.1:8000", url), tmp_path)
            assert "error" not in json.loads(answer)
            with urllib.request.urlopen(f"{url}/readyz", timeout=300) as state:
                assert (json.load(state)["models"]["large"]["state"] == "ready") is is_loaded


@pytest.mark.slow
@pytest.mark.posix
@pytest.mark.torch
def test_the_guide_to_verification_shows_what_the_command_prints(tmp_path):
    shown, with_pictures, _ = blocks("docs/how-to/verify.md")
    command, *lines = shown.splitlines()
    printed = in_shell(command.removeprefix("$ "), tmp_path).splitlines()

    def words(text):
        return [re.sub(r"\d\S*", "N", word) for word in text.split()]

    assert list(map(words, printed)) == list(map(words, lines))
    for name in ("cat.png", "dog.png"):
        PIL.Image.new("RGB", (80, 60), "red").save(tmp_path / name)
    in_shell(with_pictures, tmp_path)
