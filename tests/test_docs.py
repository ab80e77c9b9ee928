"""The documents match the code: their programs run and their tables are current."""

import ast
import inspect
import json
import os
import pkgutil
import re
import runpy
import shutil
import subprocess
import sys
import time
import tomllib
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import PIL.Image
import pytest
from openai import BadRequestError, OpenAI
from packaging.requirements import Requirement

import interfaces_page
import vlmkit
from structure import sizes
from structure.imports import Imports
from structure.project import Project
from vlmkit import cli, errors
from vlmkit.interfaces.cache_events import CacheBlock, CacheChange
from vlmkit.plugins.kinds import COMMAND
from vlmkit.plugins.registries import Registries
from vlmkit.plugins.registry import BuildContext, Registry

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    p for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("p*/*/*.md")]
)

README = (ROOT / "README.md").read_text()

ERRORS = [error for error in vars(errors).values() if inspect.isclass(error)]


def blocks(document, language):
    text = (ROOT / document).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def code(text):
    return f"`{text}`" if text else "none"


def section_of(kind):
    setting = interfaces_page.SELECTED_BY.get(kind.name, "")
    return setting or (kind.section and f"[{kind.section}]")


def test_the_table_of_kinds_equals_the_code():
    rows = [
        f"| {kind.words} | `{kind.hook}` | "
        + code(
            "click.Command" if kind is COMMAND else f"{kind.makes.__module__}.{kind.makes.__name__}"
        )
        + f" | {kind.mode} | {code(section_of(kind))} | {code(kind.contract.replace(':', '.'))} | "
        + f"{interfaces_page.OWNERS[kind]} |"
        for kind in interfaces_page.ALL_KINDS
    ]
    page = (ROOT / "docs/reference/hooks.md").read_text()
    assert re.findall(r"^\|.*`vlmkit_register_.*$", page, re.MULTILINE) == rows


def test_the_hooks_page_names_every_parameter_of_add_and_of_the_context():
    page = (ROOT / "docs/reference/hooks.md").read_text()
    given = set(inspect.signature(Registry.add).parameters) - {"self", "name", "build"}
    assert {name for name in given if f"\n- `{name}" in page} == given
    got = {name for name in (*vars(BuildContext), *BuildContext.__annotations__) if name[0] != "_"}
    got -= {"shared", "registries"}  # internals of `share` and `providers`
    assert {name for name in got if re.search(rf"`(context\.)?{name}\b", page)} == got


def test_every_kind_names_an_existing_contract():
    assert all(pkgutil.resolve_name(kind.contract) for kind in interfaces_page.ALL_KINDS)


def test_the_table_of_errors_equals_the_code():
    rows = {
        f"| `{error.__name__}` | `{error.__base__.__name__}` | "
        f"{inspect.getdoc(error).splitlines()[0]} |"
        for error in ERRORS
    }
    page = (ROOT / "docs/reference/errors.md").read_text()
    assert {line for line in page.splitlines() if line.startswith("| `")} == rows


def test_the_tree_of_errors_equals_the_code():
    drawn, above = {}, {}
    for line in errors.__doc__.split("\n\n")[1].splitlines():
        depth, name = len(re.match(r"\W*", line)[0]) // 4, re.search(r"\w+", line)[0]
        above[depth] = name
        drawn[name] = above.get(depth - 1, "Exception")
    assert drawn == {error.__name__: error.__base__.__name__ for error in ERRORS}


@pytest.mark.parametrize("error", ERRORS)
def test_exit_statuses_of_commands_equal_the_errors_page(error, monkeypatch):
    page = (ROOT / "docs/reference/errors.md").read_text()
    said = re.search(r"A command ends with (2 for .*?), and with 1 for the rest", page)[1]
    codes = {names: int(code) for code, names in re.findall(r"(\d) for ([^\d]*)", said)}

    def fail(*_, **__):
        raised = error.__new__(error, "said")
        raised.hint = ""
        raise raised

    monkeypatch.setattr(cli.vlmkit, "main", fail)
    own = [code for names, code in codes.items() if f"`{error.__name__}`" in names]
    assert cli.run([]) == (own[0] if own else 1)


def test_the_codes_of_errors_equal_the_code():
    sources = [p.read_text() for p in ROOT.glob("p*/*/src/**/*.py")]
    raised = {code for s in sources for code in re.findall(r"\bcode ?= ?\"(\w+)\"", s)}
    page = (ROOT / "docs/reference/http.md").read_text().partition("\n## Errors\n")[2]
    rows = re.findall(r"^\| \d+ \| ([^|]*) \|", page, re.MULTILINE)
    listed = {code for row in rows for code in re.findall(r"`(\w+)`", row)}
    assert raised - listed == set()
    phrases = {status.phrase.lower().replace(" ", "_") for status in HTTPStatus}
    stated = {code for code in listed if any(f'"{code}"' in s for s in sources)}
    assert listed - stated <= phrases


def test_the_examples_of_the_hooks_page_load_and_observe(tmp_path):
    for name, program in zip(
        ("kind.py", "table.py", "slow.py", "prefixes.py", "store.py", "lined.py"),
        blocks("docs/reference/hooks.md", "python"),
        strict=True,
    ):
        (tmp_path / name).write_text(program.replace("> 2.0", ">= 0.0"))
    (tmp_path / "slow.toml").write_text('plugins = ["./slow.py"]\n[observers]\nuse = ["slow"]\n')
    kind = runpy.run_path(str(tmp_path / "kind.py"))["WEIGHT_FORMAT"]
    assert kind.hook == "vlmkit_register_weight_formats"
    table = tmp_path / "table.py"
    table.write_text(f"{table.read_text()}\nVLMKIT_API = (1, 0)\n")
    toml = 'plugins = ["./table.py"]\n[cluster]\naddress = "here"\n'
    (tmp_path / "table.toml").write_text(toml)
    (shown,) = run_commands(["vlmkit config show --config table.toml"], tmp_path)
    assert re.search(r'^cluster.address +"here"', shown, re.MULTILINE)
    shown = run_commands(["vlmkit ask mock hello --config slow.toml"], tmp_path)
    assert "Timings(" in shown[0]
    observer = runpy.run_path(str(tmp_path / "prefixes.py"))["PrefixIndex"]()
    observer.blocks(CacheChange((CacheBlock(b"key", b"", (1,)),)), 0.0)
    assert list(observer.index.blocks) == [b"key"]
    (tmp_path / "lined.toml").write_text('plugins = ["./lined.py"]')
    (tmp_path / "tiny.lined").write_bytes(b'{"family": "llama"}\nweights')
    (facts,) = run_commands(["vlmkit models info tiny.lined --config lined.toml"], tmp_path)
    assert re.search(r"^family +llama", facts, re.MULTILINE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_have_a_target(document):
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text())
    assert not [link for link in links if not (document.parent / link).exists()]


def test_the_two_commands_of_the_readme_name_nox_sessions():
    commands = [c.strip() for c in blocks("README.md", "console")[:2]]
    sessions = [re.search(r"nox -s (\w+)$", command)[1] for command in commands]
    assert sessions == ["demo", "tests"]
    noxfile = (ROOT / "noxfile.py").read_text()
    assert all(f"\ndef {session}(" in noxfile for session in sessions)


@pytest.mark.torch
def test_the_python_example_of_the_readme_runs_unchanged(tmp_path):
    pictures = ROOT / "plugins/vlmkit-demo/src/vlmkit_demo/pictures"
    shutil.copy(pictures / "shapes.png", tmp_path)
    program = tmp_path / "example.py"
    program.write_text(blocks("README.md", "python")[0])
    shown = run_program("example.py", tmp_path)
    assert "circle" in shown or "square" in shown or "triangle" in shown


@contextmanager
def served(words, folder):
    """Run ``vlmkit serve`` at a free port; yield its URL."""
    command = [sys.executable, "-m", "vlmkit", *words, "--port", "0"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stderr=log)
    try:
        ends_s = time.monotonic() + 300
        while " is ready" not in (text := (folder / "log").read_text()):
            assert process.poll() is None, text
            assert time.monotonic() < ends_s, text
            time.sleep(0.1)
        yield re.search(r"listening on (https?://\S+)", text)[1]
    finally:
        process.terminate()
        process.wait(60)


def run_program(program, folder, *arguments, **environment):
    """Run a document's program; return its output."""
    done = subprocess.run(
        [sys.executable, program, *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_shell(command, folder):
    """Run a command of a document in a shell, which redirects its input and output."""
    command = command.replace("vlmkit", f"'{sys.executable}' -m vlmkit", 1)
    subprocess.run(command, shell=True, cwd=folder, timeout=600, check=True)


@pytest.mark.torch
def test_the_first_hour_tutorial_works_as_written(tmp_path):
    page, pictures = "docs/tutorial/first-hour.md", ROOT / "plugins/vlmkit-demo/src/vlmkit_demo"
    shutil.copy(pictures / "pictures/shapes.png", tmp_path)
    in_python, with_openai = blocks(page, "python")
    _, ask, serve, doctor = blocks(page, "console")
    (tmp_path / "example.py").write_text(in_python)
    assert "tokens read" in run_program("example.py", tmp_path)
    with served(serve.split()[1:], tmp_path) as url:
        (tmp_path / "client.py").write_text(with_openai.replace("http://127.0.0.1:8000", url))
        assert run_program("client.py", tmp_path).strip()
    assert with_openai == blocks("README.md", "python")[1]
    answer, as_json = run_commands(ask.strip().splitlines(), tmp_path)
    assert answer.strip()
    assert json.loads(as_json)["text"]
    assert "chosen" in run_commands([doctor.strip()], tmp_path)[0]


@pytest.mark.torch
def test_the_program_for_a_folder_of_images_resumes_where_it_ended(tmp_path):
    source = ROOT / "plugins/vlmkit-demo/src/vlmkit_demo/pictures"
    shutil.copytree(source, tmp_path / "pictures")
    (tmp_path / "pictures/broken.png").write_bytes(b"no picture")
    for kind in ("avif", "tiff"):
        PIL.Image.new("RGB", (80, 60), "red").save(tmp_path / "pictures" / f"red.{kind}")
    (program,) = blocks("docs/how-to/folder-of-pictures.md", "python")
    (tmp_path / "describe.py").write_text(program)
    for _ in range(2):
        run_program("describe.py", tmp_path)
        lines = (tmp_path / "descriptions.jsonl").read_text().splitlines()
        described = [json.loads(line) for line in lines]
        files = {p.name for p in source.iterdir() if p.suffix in (".png", ".jpg")}
        files |= {"red.avif", "red.tiff"}
        assert sorted(entry["file"] for entry in described) == sorted(files)
        assert all(entry["text"] for entry in described)


def test_the_command_for_a_folder_of_images_writes_a_line_for_each(tmp_path):
    source = ROOT / "plugins/vlmkit-demo/src/vlmkit_demo/pictures"
    shutil.copytree(source, tmp_path / "pictures")
    (command,) = blocks("docs/how-to/folder-of-pictures.md", "console")
    run_shell(command, tmp_path)
    lines = map(json.loads, (tmp_path / "answers.jsonl").read_text().splitlines())
    files = sorted(f"pictures/{file.name}" for file in source.glob("*.png"))
    assert [line["file"] for line in lines if line["text"]] == files


HUB_MODEL = "Qwen/Qwen3-VL-2B-Instruct"


def recipe(number, folder, **environment):
    """Run a program of the page of recipes with the mock as its model; return its output."""
    program = blocks("docs/how-to/recipes.md", "python")[number]
    assert HUB_MODEL in program
    (folder / "recipe.py").write_text(program.replace(HUB_MODEL, "mock"))
    return run_program("recipe.py", folder, **environment)


def pictures_in(folder, *names):
    folder.mkdir()
    for name in names:
        PIL.Image.new("RGB", (80, 60), "red").save(folder / name)


@pytest.mark.parametrize("text", ["I see no receipt.", ""])
def test_the_recipe_for_receipts_writes_json_of_its_schema_whatever_the_model_says(text, tmp_path):
    pictures_in(tmp_path / "receipts", "a.png", "b.png")
    (tmp_path / "receipts/broken.png").write_bytes(b"no picture")
    recipe(0, tmp_path, VLMKIT_ENGINE__TEXT=text)
    lines = [json.loads(line) for line in (tmp_path / "receipts.jsonl").read_text().splitlines()]
    assert [line["file"] for line in lines] == ["a.png", "b.png"]
    assert all(re.fullmatch(r"20\d\d-[01]\d-[0-3]\d", line["date"]) for line in lines)
    assert all(isinstance(line["items"], list) for line in lines)


def test_the_recipe_for_receipts_keeps_what_the_model_read(tmp_path):
    pictures_in(tmp_path / "receipts", "a.png")
    item = {"name": "bread", "price_cents": 250}
    read = {"shop": "Corner", "date": "2026-11-28", "total_cents": 300, "items": [item]}
    recipe(0, tmp_path, VLMKIT_ENGINE__TEXT=json.dumps(read))
    written = json.loads((tmp_path / "receipts.jsonl").read_text())
    assert written == {"file": "a.png", **read, "difference_cents": 50}


def test_the_recipe_for_captions_writes_only_those_that_are_missing(tmp_path):
    pictures_in(tmp_path / "pictures", "a.png", "b.png")
    (tmp_path / "pictures/b.txt").write_text("of before")
    (tmp_path / "pictures/broken.png").write_bytes(b"no picture")
    recipe(1, tmp_path, VLMKIT_ENGINE__TEXT="A red wall.")
    captions = {p.name: p.read_text() for p in (tmp_path / "pictures").glob("*.txt")}
    assert captions == {"a.txt": "A red wall.\n", "b.txt": "of before"}


def run_recipe_with_server(number, folder, config, *arguments):
    """Run a program of the page of recipes, unchanged except for its port."""
    (folder / "vlmkit.toml").write_text(
        f'[[models]]\nmodel = "mock"\nname = "{HUB_MODEL}"\n{config}'
    )
    with served(["serve", "--config", "vlmkit.toml"], folder) as url:
        program = blocks("docs/how-to/recipes.md", "python")[number]
        (folder / "recipe.py").write_text(program.replace("http://127.0.0.1:8000", url))
        return run_program("recipe.py", folder, *arguments)


def test_the_recipe_for_boxes_draws_them_in_pixels_of_the_picture(tmp_path):
    PIL.Image.new("RGB", (80, 60), "white").save(tmp_path / "street.png")
    said = json.dumps([{"bbox_2d": [250, 100, 500, 500], "label": "cat"}])
    shown = run_recipe_with_server(2, tmp_path, f"engine = {{use = 'mock', text = '{said}'}}")
    assert shown == "cat [20.0, 6.0, 40.0, 30.0]\n"
    with PIL.Image.open(tmp_path / "boxes.png") as drawn:
        assert drawn.getpixel((20, 28)) == (255, 0, 0)
        assert drawn.getpixel((60, 50)) == (255, 255, 255)


AGENT = """
[models.engine]
use = "mock"

[[models.engine.replies]]
to = "Which wall"
calls = [{name = "list_pictures", arguments = {}}]

[[models.engine.replies]]
to = "wall.png"
calls = [{name = "show_picture", arguments = {name = "NAME"}}]
"""


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("wall.png", r"image 1: 80x60 sha256:\w+\s*"),
        ("../secret.png", r"There is no such picture\.\s*"),
    ],
)
def test_the_agent_of_the_recipes_looks_at_pictures_of_its_folder_alone(name, answer, tmp_path):
    pictures_in(tmp_path / "pictures", "wall.png")
    PIL.Image.new("RGB", (8, 6), "blue").save(tmp_path / "secret.png")
    config = AGENT.replace("NAME", name)
    shown = run_recipe_with_server(3, tmp_path, config, "Which wall is red?")
    assert re.fullmatch(answer, shown)


def test_the_tests_of_the_page_on_testing_clients_pass_unchanged(tmp_path):
    (program,) = blocks("docs/how-to/test-a-client.md", "python")
    (tmp_path / "test_caption.py").write_text(program)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_caption.py"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert "4 passed" in done.stdout, done.stdout + done.stderr


def test_the_config_of_the_page_on_testing_clients_calls_the_tool(tmp_path):
    page = "docs/how-to/test-a-client.md"
    (tmp_path / "vlmkit.toml").write_text(blocks(page, "toml")[0])
    weather = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    message = {"role": "user", "content": "What is the weather in Köln?"}
    assert blocks(page, "console")[1] == "vlmkit serve mock --port 0\n"
    with served(["serve", "--config", "vlmkit.toml"], tmp_path) as url:
        client = OpenAI(base_url=f"{url}/v1", api_key="unused")
        answer = client.chat.completions.create(model="mock", messages=[message], tools=[weather])
    (call,) = answer.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Köln"}


def test_the_messages_of_the_troubleshooting_page_equal_the_code():
    said = set()
    for file in ROOT.glob("p*/*/src/**/*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                said.add(node.value)
    page = (ROOT / "docs/how-to/troubleshoot.md").read_text()
    cells = re.findall(r"^\| ([^|]*) \|", page, re.MULTILINE)
    quoted = [message for cell in cells for message in re.findall(r"`([^`]*)`", cell)]
    assert len(quoted) > 10
    assert [m for m in quoted if not any(m in text for text in said)] == []


def test_the_code_of_the_page_on_embeddings_and_scores_runs_unchanged(tmp_path):
    PIL.Image.new("RGB", (8, 6), "red").save(tmp_path / "house.png")
    (tmp_path / "example.py").write_text(blocks("docs/how-to/embed.md", "python")[0])
    cosines, shape, *scores = run_program("example.py", tmp_path).strip().splitlines()
    assert cosines.startswith("[1.")
    assert shape == "(8,)"
    assert [line.split()[0] for line in scores] == ["yes", "no"]


def test_the_code_of_the_page_on_constraints_runs_unchanged(tmp_path):
    PIL.Image.new("RGB", (8, 6), "red").save(tmp_path / "shape.png")
    (tmp_path / "example.py").write_text(blocks("docs/how-to/constrain.md", "python")[0])
    colour, is_red, day, nest = run_program("example.py", tmp_path).strip().splitlines()
    assert colour in ("red", "green", "blue")
    assert is_red in ("yes", "no")
    assert re.fullmatch(r"20\d\d-[01]\d-[0-3]\d", day)
    assert set(nest) <= set("(x)")


def test_the_command_of_the_page_on_constraints_answers_in_json_of_its_schema(tmp_path):
    PIL.Image.new("RGB", (8, 6), "red").save(tmp_path / "shape.png")
    page = "docs/how-to/constrain.md"
    (schema,), (command,) = blocks(page, "json"), blocks(page, "console")
    (tmp_path / "shape.json").write_text(schema)
    (answer,) = run_commands([command.strip()], tmp_path)
    assert list(json.loads(answer)) == json.loads(schema)["required"]


COMPARISON = "docs/explanation/comparison.md"


def test_the_comparison_states_what_the_server_refuses(tmp_path):
    assert "vlmkit answers both with\nstatus 400" in (ROOT / COMPARISON).read_text()
    video = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}
    audio = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    with served(["serve", "mock"], tmp_path) as url:
        client = OpenAI(base_url=f"{url}/v1", api_key="unused")
        for part in (video, audio):
            message = {"role": "user", "content": [part, {"type": "text", "text": "What?"}]}
            with pytest.raises(BadRequestError):
                client.chat.completions.create(model="mock", messages=[message])


def test_the_comparison_has_the_times_of_pictures_of_the_decision():
    towers = (DECISIONS / "0035-vision-towers-in-eight-bits.md").read_text()
    rows = re.findall(r"8 bits, llama.cpp `q8_0` \| (.*)", towers)
    measured = [tuple(re.findall(r"[\d.]+", row)) for row in rows]
    page = (ROOT / COMPARISON).read_text()
    stated = re.findall(
        r"^\| (?:SmolVLM|Qwen2.5-VL).* \| (.*) \| (.*) \| (.*) \| (.*) \|$", page, re.MULTILINE
    )
    assert len(stated) == 3
    assert stated == [row[1:3] + row[4:6] for row in measured]


PUBLIC = "docs/tutorial/public-server.md"
NOT_RUN = re.compile(r"\*Not run by the\s+tests: [^*]+\*\n\n```console\n(.*?)```", re.DOTALL)


def in_shell(block, folder, url=""):
    """Run a block in a shell, which finds ``vlmkit``; return what it prints."""
    if url:
        block = block.replace(":8443", f":{url.rpartition(':')[2]}")
    define = f"vlmkit() {{ '{sys.executable}' -m vlmkit \"$@\"; }}\n"
    done = subprocess.run(
        ["bash", "-c", f"set -e\n{define}{block}"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_tutorial_of_a_public_server_runs_every_block_but_three():
    unrun = NOT_RUN.findall((ROOT / PUBLIC).read_text())
    assert [block.split()[0] for block in unrun] == ["certbot", "systemctl", "curl"]
    assert set(unrun) < set(blocks(PUBLIC, "console"))


@pytest.mark.posix
@pytest.mark.torch
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here")
def test_the_tutorial_of_a_public_server_works_as_written(tmp_path):
    unrun = NOT_RUN.findall((ROOT / PUBLIC).read_text())
    run = [block for block in blocks(PUBLIC, "console") if block not in unrun]
    local, exposed, keys, certificate, check, serve, question, ask, metrics, outside = run
    with served(local.split()[1:], tmp_path) as url:
        assert url.startswith("http://127.0.0.1:")
    with pytest.raises(AssertionError, match="no API key is required"):
        in_shell(exposed, tmp_path)

    assert "prometheus" in in_shell(keys, tmp_path)
    in_shell(certificate, tmp_path)
    config = blocks(PUBLIC, "toml")[0]
    (tmp_path / "vlmkit.toml").write_text(config.replace("port = 8443", "port = 0"))
    assert in_shell(f"{check.strip()} 2>&1", tmp_path).startswith("valid: ")
    (tmp_path / "vlmkit.toml").write_text(config.replace("0.0.0.0", "127.0.0.1"))
    shutil.copy(ROOT / "plugins/vlmkit-demo/src/vlmkit_demo/pictures/shapes.png", tmp_path)
    with served(serve.split()[1:], tmp_path) as url:
        in_shell(question, tmp_path)
        answer = json.loads(in_shell(ask, tmp_path, url))
        assert "circle" in answer["choices"][0]["message"]["content"]
        refused = in_shell(ask.replace("-sS", "-sS --include"), tmp_path, url)
        assert refused.split()[1] == "429"
        assert "retry-after: " in refused.lower()
        assert 'vlmkit_requests_total{model="demo"} 1.0' in in_shell(metrics, tmp_path, url)
        denied = metrics.replace("prometheus.key", "alice.key")
        assert "insufficient_permissions" in in_shell(denied, tmp_path, url)
        assert in_shell(outside, tmp_path, url).split() == ["401", "421"]
    lines = [json.loads(line) for line in (tmp_path / "access.jsonl").read_text().splitlines()]
    assert [line["key_name"] for line in lines][:2] == ["trial", "trial"]
    assert "401" in (tmp_path / "audit.jsonl").read_text()


def run_commands(commands, folder):
    """Run a document's commands as modules of this Python; return the output of each."""
    shown = []
    for command in commands:
        words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', command)]
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        shown.append(done.stdout)
    return shown


def test_the_first_plugin_of_the_tutorial_loads_and_answers(tmp_path):
    page = "docs/tutorial/first-plugin.md"
    (tmp_path / "shout.py").write_text(blocks(page, "python")[0])
    (tmp_path / "second.toml").write_text(blocks(page, "toml")[0])
    _, commands, *_ = blocks(page, "console")  # the first one's packages are installed here
    shown = run_commands(commands.strip().splitlines(), tmp_path)
    assert "runner-up" in shown[0]
    assert shown[1]


def test_the_plugin_guide_starts_with_the_output_of_the_command(tmp_path):
    first, then, *_ = blocks("docs/how-to/write-a-plugin.md", "console")
    (shown,) = run_commands([first.strip()], tmp_path)
    assert [line.strip() for line in shown.splitlines()[1:]] == then.strip().splitlines()


def test_a_plugin_of_the_guide_works_without_installation(tmp_path):
    page = "docs/how-to/write-a-plugin.md"
    (made,) = re.findall(r"`(vlmkit plugins new scheduler \S+)`", (ROOT / page).read_text())
    run_commands([made], tmp_path)
    (tmp_path / "short.toml").write_text(blocks(page, "toml")[0])
    plugins, answer = run_commands(blocks(page, "console")[2].strip().splitlines(), tmp_path)
    assert "short" in plugins.split()
    assert answer == "hello\n"


def test_the_plugin_guide_links_every_protocol_and_example():
    text = (ROOT / "docs/how-to/write-a-plugin.md").read_text()
    interfaces = (ROOT / "docs/reference/interfaces.md").read_text()
    for kind in interfaces_page.ALL_KINDS:
        slug = kind.words.replace(" ", "-")
        assert f"[{kind.words}](../reference/interfaces.md#{slug})" in text
        assert f"\n## {kind.words.capitalize()}\n" in interfaces
        assert f"testing/templates/{kind.name})" in text


def test_the_example_of_an_identity_follows_the_content_of_a_name(tmp_path):
    program = blocks("docs/how-to/write-a-plugin.md", "python")[1]
    (file := tmp_path / "adapters.py").write_text(program)
    example = runpy.run_path(str(file))
    folder = tmp_path / "weights"
    folder.mkdir()
    identities = []
    for content in (b"old", b"new"):
        (folder / "legal.bin").write_bytes(content)
        field = example["field_of"](example["AdapterFolder"](folder))
        identities.append(field.identity(example["Adapter"](name="legal")))
    assert len(set(identities)) == 2
    assert Registries("mine").engines.add("mine", print, request_fields=(field,)) is None


def test_the_request_field_of_the_plugin_guide_changes_the_answer(tmp_path):
    (file := tmp_path / "dry.py").write_text(blocks("docs/how-to/write-a-plugin.md", "python")[0])
    sections = {"plugins": {"files": [str(file)]}, "sampler": {"use": "dry"}}
    with vlmkit.load("mock", **sections) as model:
        prompt = '{"mock": {"text": "abc", "tokens": 9}}'
        assert model.generate(prompt).text == "abcabcabc"
        answer = model.generate(prompt, fields={"dry": {"multiplier": 99}}).text
        assert answer.startswith("a")  # the prompt has an "ab" already
        assert not answer.startswith("ab")


def test_the_plugin_guide_names_every_contract():
    import vlmkit_testing

    text = (ROOT / "docs/how-to/write-a-plugin.md").read_text()
    contracts = [name for name in vlmkit_testing.__all__ if name.endswith("Contract")]
    assert len(contracts) == 16
    assert all(f"`{name}`" in text for name in contracts)


DECISIONS = ROOT / "docs/explanation/adr"
STATUS = re.compile(r"Accepted|Superseded by \[\d{4}\]\(\S+\)|Amended by (\[\d{4}\]\(\S+\)(, |$))+")


def decisions():
    """Return the title and the status that each decision states, by its file."""
    stated = {}
    for page in sorted(DECISIONS.glob("0*.md")):
        text = page.read_text()
        head = re.match(r"# (\d{4}): ([^\n]+)\n\n\*\*Status\.\*\* (.+?)\.\n\n", text, re.DOTALL)
        assert head, f"{page.name} begins otherwise than '# NUMBER: Title' and '**Status.** ....'"
        assert page.name.startswith(f"{head[1]}-")
        stated[page.name] = (head[2], " ".join(head[3].split()))
    return stated


def test_the_index_lists_every_decision_once_with_title_and_status():
    rows = re.findall(
        r"^\| \[(\d{4})\]\((\S+)\) \| (.+?) \| (.+?) \|$",
        (DECISIONS / "README.md").read_text(),
        re.MULTILINE,
    )
    assert all(file.startswith(f"{number}-") for number, file, _, _ in rows)
    stated = decisions()
    assert sorted(file for _, file, _, _ in rows) == sorted(stated)
    assert {file: (title, status) for _, file, title, status in rows} == stated


def test_a_status_has_a_known_form_and_its_records_refer_back():
    stated = decisions()
    assert [file for file, (_, status) in stated.items() if not STATUS.fullmatch(status)] == []
    for file, (_, status) in stated.items():
        for number, target in re.findall(r"\[(\d{4})\]\((\S+)\)", status):
            assert target.startswith(f"{number}-")
            assert f"({file})" in (DECISIONS / target).read_text(), f"{target} does not name {file}"


LINES_OF_CODE = re.compile(r"^\| `(vlmkit-\w+)` \| .* \| ([\d,]+) \|$", re.MULTILINE)


def test_the_readme_states_the_lines_of_code_of_every_distribution():
    """Rounded numbers, so that not every change of the sources changes the page."""
    project = Project(ROOT)
    counted = sizes.distribution_code_lines(project, Imports(project))
    stated = {name: int(number.replace(",", "")) for name, number in LINES_OF_CODE.findall(README)}
    assert sorted(stated) == sorted(set(counted) - {sizes.ALL})
    wrong = [
        f"{name}: {counted[name].number} lines, and the README states {number}"
        for name, number in stated.items()
        if abs(number - counted[name].number) > max(0.05 * counted[name].number, 25)
    ]
    assert wrong == []


def test_no_document_or_source_contains_a_machine_specific_path():
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    suspect = re.compile(r"(^|[\s\"'(=])/(tmp|root|home|work|opt)/", re.MULTILINE)
    texts = {
        name: (ROOT / name).read_text(errors="ignore")
        for name in listed.stdout.split()
        if Path(name).suffix in {".py", ".md", ".toml", ".sh"} and (ROOT / name).is_file()
    }
    assert not [name for name, text in texts.items() if suspect.search(text)]


ASKS_MOCK = re.compile(
    r'vlmkit (?:ask|chat|serve|verify) mock|load\("mock"|model = "mock"|"mcp", "mock"'
)
GUIDES = [
    p
    for p in [*DOCUMENTS, *ROOT.glob("examples/*/README.md")]
    if p.parent.name not in ("adr", "reference") and p.name != "CHANGELOG.md"
]


def test_pages_that_use_the_mock_state_what_to_install():
    asking = [page for page in GUIDES if ASKS_MOCK.search(page.read_text())]
    assert len(asking) > 8
    lacking = [
        str(page.relative_to(ROOT)) for page in asking if "/vlmkit-mock" not in page.read_text()
    ]
    assert lacking == []


def test_pages_install_from_the_clone_until_an_index_has_a_release():
    pages = [
        page for page in DOCUMENTS if page.parent.name != "adr" and page.name != "CHANGELOG.md"
    ]
    commands = [
        (str(page.relative_to(ROOT)), command)
        for page in pages
        for command in re.findall(r"pip install ([^\n`;]*)", page.read_text())
    ]
    assert len(commands) > 20
    from_index = [each for each in commands if re.search(r"(?:^|[ \"])vlmkit", each[1])]
    assert from_index == []
    folders = {place for _, text in commands for place in re.findall(r"\./([\w/-]+)", text)}
    assert [place for place in folders if not (ROOT / place / "pyproject.toml").is_file()] == []


OWN = {path.parent.name: path for path in ROOT.glob("p*/*/pyproject.toml")}
AT_FIRST = set(re.findall(r"/(vlmkit[\w-]*)", README.partition("## Use it")[2].split("```")[1]))
"""The distributions that the README installs first."""


def required(name, extras=()):
    """Return the distributions of this repository that one of them requires."""
    project = tomllib.loads(OWN[name].read_text())["project"]
    stated = [*project["dependencies"]]
    for extra in extras:
        stated += project["optional-dependencies"][extra]
    found = set()
    for each in map(Requirement, stated):
        if each.name in OWN:
            found |= {each.name} | required(each.name, each.extras)
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_each_command_that_installs_from_the_clone_names_what_an_index_would_add(document):
    for command in re.findall(r"pip install ([^\n`;]*)", document.read_text()):
        named = re.findall(r"\./p\w+/(vlmkit[\w-]*)(?:\[([\w,]+)\])?", command)
        is_there = {name for name, _ in named}
        if is_there and "vlmkit-core" not in is_there:  # something was installed before
            is_there |= AT_FIRST
        for name, extras in named:
            lacking = required(name, filter(None, extras.split(","))) - is_there
            assert lacking == set(), command
