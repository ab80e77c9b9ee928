"""Programs of the README run, and its tables are complete."""

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from vlmkit_mock.settings import MockEngineSettings, Script

README = (Path(__file__).parents[1] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_programs_of_the_readme_run_unchanged() -> None:
    names: dict[str, Any] = {}
    for program in blocks("python"):
        exec(compile(program, "README.md", "exec"), names)
    assert names["answer"].text.endswith("What is this?")


def test_the_table_of_the_readme_lists_every_field_of_a_script() -> None:
    assert re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE) == list(Script.__struct_fields__)


def test_settings_of_the_readme_exist() -> None:
    engine = tomllib.loads(blocks("toml")[0])["engine"]
    assert engine.pop("use") == "mock"
    assert msgspec.convert(engine, MockEngineSettings).capacity_tokens == 4096
    more = tomllib.loads(blocks("toml")[1])["engine"]
    assert msgspec.convert(more, MockEngineSettings).replies[0].calls[0].name == "weather"
