"""The how-to page on monitoring: its config, commands and metric names work."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_dashboard import SERIES

from vlmkit.config import read_layers
from vlmkit.config.plugin_loading import load_plugins
from vlmkit.settings.plugins import PluginSettings
from vlmkit_monitor import spans as genai
from vlmkit_server.commands.components import monitors

PAGE = (Path(__file__).parents[3] / "docs/how-to/observe.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_config_of_the_page_builds_the_stated_monitors(tmp_path):
    (toml,) = blocks("toml")
    (tmp_path / "vlmkit.toml").write_text(toml)
    layers = read_layers(tmp_path / "vlmkit.toml", environ={})
    plugins = load_plugins(PluginSettings(), environ={})
    built = monitors(layers.read(plugins.tables).config, plugins)
    assert list(built) == ["prometheus"]
    for monitor in built.values():
        monitor.close()


def test_the_queries_of_the_page_name_existing_metrics():
    queries = re.findall(r"^\| .* \| `(.*)` \|$", PAGE, re.MULTILINE)
    assert len(queries) >= 6
    for query in queries:
        names = set(re.findall(r"vlmkit_\w+", query))
        assert names
        assert names <= SERIES


@pytest.mark.parametrize("what", ["dashboard", "rules"])
def test_the_commands_of_the_page_run(what):
    (command,) = re.findall(rf"^python (-m vlmkit_monitor {what}) > ", PAGE, re.MULTILINE)
    done = subprocess.run([sys.executable, *command.split()], capture_output=True, check=True)
    assert len(done.stdout) > 1000


def test_the_page_names_the_metrics_of_the_conventions():
    for name in (
        genai.REQUEST_DURATION,
        genai.TIME_TO_FIRST_TOKEN,
        genai.TIME_PER_OUTPUT_TOKEN,
        genai.TOKEN_USAGE,
    ):
        assert f"`{name}`" in PAGE
