"""`vlmkit plan`: what it adds up, what fits, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from vlmkit.cli import run

MIB = 2**20
PLUGIN = """
from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.memory_plan import MemoryNeed, MemoryPlan
from vlmkit.plugins.hookspecs import hookimpl

VLMKIT_API = (1, 0)
MIB = 2**20
LIMITS = EngineLimits(
    vocab_size=1000, max_sequence_tokens=4096, max_sequences=16, capacity_tokens=8192,
    max_chunk_tokens=64,
)


def plan(context, load):
    tokens = (load.context_tokens or 4096) * load.num_sequences
    return MemoryPlan(
        needs=(
            MemoryNeed(name="weights", num_bytes=100 * MIB),
            MemoryNeed(name="KV cache", num_bytes=tokens * 1024, token_bytes=1024),
            MemoryNeed(name="step", num_bytes=30 * MIB),
            MemoryNeed(name="smaller step", num_bytes=20 * MIB),
        ),
        device="cuda:0",
        limits=LIMITS,
    )


@hookimpl
def vlmkit_register_engines(registry):
    registry.add("planned", lambda context: None, cannot_serve=lambda _: None, plan=plan)
    registry.add("silent", lambda context: None, cannot_serve=lambda _: None)
    registry.add("wrong", lambda context: None, cannot_serve=lambda _: None, plan=lambda *_: 7)
"""


@pytest.fixture
def sets(tmp_path: Path) -> list[str]:
    file = tmp_path / "planned.py"
    file.write_text(PLUGIN)
    return ["--set", f"plugins=['{file}']", "--set", "engine.use=planned"]


def report(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert run(["plan", "mock", "--json", *arguments]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def total(found: dict[str, Any], device: str) -> int:
    (size,) = (each["num_bytes"] for each in found["totals"] if each["device"] == device)
    return int(size)


def test_the_total_of_a_device_is_the_sum_of_its_needs(
    capsys: pytest.CaptureFixture[str], sets: list[str]
) -> None:
    found = report(capsys, *sets, "--context", "1024", "--sequences", "4")
    assert total(found, "cuda:0") == (100 + 4 + 30 + 20) * MIB
    process = next(each for each in found["needs"] if each["component"] == "process")
    assert process["num_bytes"] > 40 * MIB  # Python and the libraries of the server
    assert total(found, "cpu") >= process["num_bytes"]


def test_the_cache_grows_to_its_capacity_by_prompts_of_earlier_requests(
    capsys: pytest.CaptureFixture[str], sets: list[str]
) -> None:
    found = report(capsys, *sets, "--context", "1024", "--sequences", "4")
    assert found["cache_growth_bytes"] == (8192 - 4 * 1024) * 1024
    assert run(["plan", "mock", *sets, "--context", "1024", "--sequences", "4"]) == 0
    assert "earlier prompts stay in the cache, up to 4.0 MiB besides" in capsys.readouterr().out


@pytest.mark.server
def test_worker_processes_count_as_far_as_the_server_starts_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = report(capsys, "--set", "server.num_renderers=2")
    needs = {each["name"]: each["num_bytes"] for each in found["needs"]}
    assert needs["renderers"] == 2 * found["renderer_bytes"] > 40 * MIB
    assert needs["constraint worker"] > 10 * MIB
    assert total(found, "cpu") == sum(needs.values())
    found = report(capsys, "--set", "server.constraint_workers=false")
    assert [each["name"] for each in found["needs"]] == ["libraries and tokenizer"]


def test_a_context_over_that_of_the_engine_is_lowered_to_it(
    capsys: pytest.CaptureFixture[str], sets: list[str]
) -> None:
    found = report(capsys, *sets, "--context", "100000")
    assert found["load"]["context_tokens"] == 4096


@pytest.mark.parametrize(
    ("memory", "load", "fits", "changes"),
    [
        ("200M", (1024, 4), True, []),
        (
            "152M",
            (1024, 4),
            False,
            ["engine.max_sequences = 2", "engine.max_sequence_tokens = 512"],
        ),
        ("200M", (4096, 4), True, ["engine.cache_tokens = 16384"]),
        ("200M", (256, 20), True, ["engine.max_sequences = 20"]),
        ("90M", (1024, 4), False, ['engine.dtype = "bfloat16"']),
    ],
)
def test_what_fits_and_which_settings_to_change(
    capsys: pytest.CaptureFixture[str],
    sets: list[str],
    memory: str,
    load: tuple[int, int],
    fits: bool,
    changes: list[str],
) -> None:
    size = ["--context", str(load[0]), "--sequences", str(load[1])]
    found = report(capsys, *sets, *size, "--memory", memory, code=int(not fits))
    fit = found["fit"]
    assert fit["fits"] == fits
    for change in changes:
        assert any(each.startswith(change) for each in fit["changes"]), fit["changes"]
    if not changes:
        assert fit["changes"] == []
    room = fit["memory_bytes"] - 150 * MIB
    assert fit["max_sequences"] == max(0, room // (1024 * load[0]))


def test_a_load_that_just_fits_fits(capsys: pytest.CaptureFixture[str], sets: list[str]) -> None:
    arguments = [*sets, "--context", "1024", "--memory", "160M", "--sequences"]
    most = report(capsys, *arguments, "1")["fit"]["max_sequences"]
    assert report(capsys, *arguments, str(most))["fit"]["fits"]
    assert not report(capsys, *arguments, str(most + 1), code=1)["fit"]["fits"]


def test_the_table_shows_every_need_and_what_is_not_used(
    capsys: pytest.CaptureFixture[str], sets: list[str]
) -> None:
    assert run(["plan", "mock", *sets, "--context", "1024", "--memory", "1T"]) == 0
    shown = capsys.readouterr().out
    for text in ("KV cache", "100.0 MiB", "total", "silent", "able, but not preferred", "it fits"):
        assert text in shown


def test_a_component_that_does_not_say_what_it_takes_is_named(
    capsys: pytest.CaptureFixture[str], sets: list[str]
) -> None:
    assert run(["plan", "mock", *sets, "--set", "engine.use=silent"]) == 0
    assert "the provider of engine does not say what it takes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--memory", "much"], 2, "'much' is no size such as 16G"),
        (["--memory", "0"], 2, "'0' is no size such as 16G"),
        (["--image", "big"], 2, "'big' is no size of an image such as 1024x768"),
        (["--image", "0x10"], 2, "'0x10' is no size of an image"),
        (["--context", "3"], 2, "3 is not in the range x>=32"),
        (["--sequences", "0"], 2, "0 is not in the range"),
        (["--set", "engine.use=wrong"], 1, "'wrong'"),
        (["--set", "engine.nope=1"], 2, "'nope'"),
        (["--image", "99999x99999"], 1, "an image of 99999x99999 is over 50000000 pixels"),
    ],
)
def test_invalid_requests_and_plugins_are_one_error(
    capsys: pytest.CaptureFixture[str],
    sets: list[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    assert run(["plan", "mock", *sets, *arguments]) == code
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert message in shown


def test_a_folder_that_cannot_be_served_is_refused_as_by_serve(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "nobody_knows"}')
    errors = []
    for command in ("plan", "ask"):
        assert run([command, str(tmp_path), *["hello"] * (command == "ask")]) == 1
        errors.append(capsys.readouterr().err)
    assert errors[0] == errors[1]
