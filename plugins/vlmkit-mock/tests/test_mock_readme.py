"""The README's programs run, and its tables are complete."""

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from vlmkit_mock.settings import MockEngineSettings, Script

README = (Path(__file__).parents[1] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_its_programs_run_as_they_stand() -> None:
    names: dict[str, Any] = {}
    for program in blocks("python"):
        exec(compile(program, "README.md", "exec"), names)
    assert names["answer"].text.endswith("What is this?")


def test_its_table_lists_every_field_of_a_script() -> None:
    assert re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE) == list(Script.__struct_fields__)


def test_its_settings_are_settings() -> None:
    engine = tomllib.loads(blocks("toml")[0])["engine"]
    assert engine.pop("use") == "mock"
    assert msgspec.convert(engine, MockEngineSettings).capacity_tokens == 4096
    more = tomllib.loads(blocks("toml")[1])["engine"]
    assert msgspec.convert(more, MockEngineSettings).replies[0].calls[0].name == "weather"
