"""Sources of settings, their precedence, and errors about wrong settings."""

import importlib.metadata
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from vlmkit.config import COMPONENTS, RESERVED_VARIABLES, Component, Config, ModelEntry, read_layers
from vlmkit.config.paths import named_paths
from vlmkit.config.providers import check_components, paths_of, with_provider_paths
from vlmkit.config.schema import json_schema
from vlmkit.config.structs import descriptions, known_paths, with_tables
from vlmkit.errors import ConfigError, PluginUnavailable, UnknownPlugin
from vlmkit.plugins import loader
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.settings.plugins import PluginSettings
from vlmkit_server.plugin import VLMKIT_TABLES
from vlmkit_server.settings.server import ServerSettings

PLUGIN = '''
from typing import Annotated
import msgspec
from vlmkit.plugins.hookspecs import hookimpl
from vlmkit.settings.paths import InputFile

VLMKIT_API = 1

class Base(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What both have.

    Attributes:
        device: where to compute; a second
            line of it.
    """

    device: str = "cpu"

class Settings(Base, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the toy.

    Attributes:
        num_lanes: how many lanes.
        notes: a file.
    """

    num_lanes: Annotated[int, msgspec.Meta(ge=1)] = 2
    notes: InputFile | None = None
    hub_token: str = "t0ps3cret"

@hookimpl
def vlmkit_register_engines(registry):
    registry.add("toy", lambda context: context, settings=Settings, description="a toy")
    registry.add("absent", lambda context: context, why_not=lambda: "no such device")
'''


(SERVER,) = importlib.metadata.entry_points(group="vlmkit", name="server")
CONFIG: Any = with_tables(VLMKIT_TABLES)


def write(folder: Path, text: str, name: str = "vlmkit.toml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def read(
    file: Path | None = None, *sets: str, arguments: dict[str, Any] | None = None, **environ: Any
) -> Any:
    layers = read_layers(file, environ=environ, assignments=sets, arguments=arguments)
    return layers.read(VLMKIT_TABLES)


def origin(layered: Any, path: str) -> str:
    return next(str(s.origin) for s in layered.settings() if s.path == path)


@pytest.fixture
def plugins(tmp_path: Path) -> loader.Plugins:
    return loader.load(files=[write(tmp_path, PLUGIN, "toy.py")], entry_points=[SERVER])


# Layers.


def test_every_value_is_a_default_without_any_layer() -> None:
    layered = read()
    assert layered.config == CONFIG()
    assert {s.origin for s in layered.settings()} == {"default"}


def test_each_layer_overrides_the_one_before(tmp_path: Path) -> None:
    file = write(tmp_path, "[server]\nport = 1\nhost = '::1'\nmax_requests = 11\nkeepalive_s = 5\n")
    env = {"VLMKIT_SERVER__PORT": "2", "VLMKIT_SERVER__HOST": "127.0.0.2"}
    env["VLMKIT_SERVER__MAX_REQUESTS"] = "12"
    layered = read(
        file, "server.port=3", "server.host=127.0.0.3", arguments={"server": {"port": 4}}, **env
    )
    server = layered.config.server
    assert (server.port, server.host, server.max_requests) == (4, "127.0.0.3", 12)
    assert server.keepalive_s == 5.0
    assert origin(layered, "server.port") == "argument"
    assert origin(layered, "server.host") == "--set server.host"
    assert origin(layered, "server.max_requests") == "environment VLMKIT_SERVER__MAX_REQUESTS"
    assert origin(layered, "server.keepalive_s") == str(file)
    assert origin(layered, "server.max_body_bytes") == "default"


def test_the_environment_names_the_config_file_unless_the_caller_does(tmp_path: Path) -> None:
    one, two = write(tmp_path, "model='a'", "1.toml"), write(tmp_path, "model='b'", "2.toml")
    assert read(VLMKIT_CONFIG=str(one)).config.model == "a"
    assert read(two, VLMKIT_CONFIG=str(one)).config.model == "b"


def test_the_last_of_two_equal_assignments_applies() -> None:
    assert read(None, "server.port=1", "server.port=2").config.server.port == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("0.5", 0.5),
        ("true", True),
        ('"7"', "7"),
        ("cuda:1", "cuda:1"),
        ("", ""),
        ('[1, "two"]', [1, "two"]),
        ("[1, 2", "[1, 2"),
        ("2026-01-01", "2026-01-01"),
        ("a = b", "a = b"),
        ("1\nx = 2", "1\nx = 2"),
    ],
)
def test_an_assigned_text_is_read_as_toml_or_else_as_text(text: str, value: Any) -> None:
    layered = read(None, f"engine.x={text}", VLMKIT_SAMPLER__X=text)
    # --set ignores spaces around its name and value.
    assert layered.config.engine.settings["x"] == value
    assert layered.config.sampler.settings["x"] == value


def test_an_inline_table_sets_each_of_its_keys() -> None:
    layered = read(None, "engine.x=1", VLMKIT_ENGINE='{use = "toy", x = 0, y = {z = 2}}')
    assert layered.config.engine == Component(use="toy", settings={"x": 1, "y": {"z": 2}})
    assert origin(layered, "engine.y.z") == "environment VLMKIT_ENGINE"


def test_digits_are_read_as_text_for_a_text_setting() -> None:
    layered = read(None, "model=7", VLMKIT_REVISION="0012")
    assert (layered.config.model, layered.config.revision) == ("7", "0012")


def test_a_value_replaces_a_table_and_a_table_replaces_a_value(tmp_path: Path) -> None:
    file = write(tmp_path, "[engine]\na.b = 1\nc = 2\n")
    assert read(file, "engine.a=3").config.engine.settings == {"a": 3, "c": 2}
    assert read(file, "engine.c.d=4").config.engine.settings == {"a": {"b": 1}, "c": {"d": 4}}


def test_an_empty_section_changes_nothing(tmp_path: Path) -> None:
    file = write(tmp_path, "[engine]\nuse='toy'\n[server]\n")
    layered = read(file, VLMKIT_ENGINE="{}")
    assert layered.config == CONFIG(engine=Component(use="toy"))


def test_paths_in_a_config_file_are_relative_to_its_folder(tmp_path: Path) -> None:
    text = "plugins=['./a.py', '/b.py']\n[[models]]\nmodel='./m'\nname='m'\n[[models]]\nmodel='o/n'"
    config = read(write(tmp_path, text)).config
    assert config.plugins.files == (str(tmp_path / "a.py"), "/b.py")
    assert [entry.model for entry in config.models] == [str(tmp_path / "m"), "o/n"]
    assert read(write(tmp_path, "model='../m'")).config.model == str(tmp_path / "../m")
    text = "[plugins]\nonly=['one']\nfiles=['./a.py']"
    plugins = PluginSettings(only=("one",), files=(str(tmp_path / "a.py"),))
    assert read(write(tmp_path, text)).config.plugins == plugins


OWNER = """
import msgspec
from vlmkit.plugins.kinds import Kind
from vlmkit.settings.paths import InputFile

VLMKIT_API = (1, 0)

class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    '''How the workers of a cluster are found.

    Attributes:
        address: where.
        secret_file: a file.
    '''

    address: str = "here"
    secret_file: InputFile = ""

CODEC = Kind("codec", None, "all", "what packs numbers", is_optional=True)
VLMKIT_KINDS = (CODEC,)
VLMKIT_TABLES = {"cluster": ClusterSettings, "codecs": CODEC}
"""


@pytest.fixture
def owner(tmp_path: Path) -> loader.Plugins:
    return loader.load(files=[write(tmp_path, OWNER, "owner.py")], entry_points=[])


def test_a_plugin_can_own_tables_of_the_config(owner: loader.Plugins, tmp_path: Path) -> None:
    cluster: Any = owner.tables["cluster"]
    file = write(tmp_path, "[cluster]\naddress = 'there'\nsecret_file = 'key'\n")
    layers = read_layers(file, environ={"VLMKIT_CODECS__USE": '["none"]'})
    layered = layers.read(owner.tables)
    found = layered.config.table("cluster", cluster)
    assert (found.address, found.secret_file) == ("there", str(tmp_path / "key"))
    assert layered.config.group("codecs").use == ("none",)
    assert origin(layered, "cluster.address") == str(file)
    settings = {setting.path: setting.description for setting in layered.settings()}
    assert settings["cluster.secret_file"] == "a file."
    properties = json_schema(owner)["properties"]
    assert properties["cluster"]["properties"]["address"]["default"] == "here"
    assert set(properties["codecs"]["properties"]) == {"use"}
    paths = paths_of(layered.config, owner)
    assert ("cluster.secret_file", str(tmp_path / "key"), "read") in paths


def test_mistakes_in_tables_of_plugins_and_of_the_core_are_reported_together(
    owner: loader.Plugins,
) -> None:
    wrong = (
        "cluster.adress=x",
        "clusters.address=x",
        "pipeline.max_images=0",
        "codecs.use=7",
    )
    with pytest.raises(ConfigError) as caught:
        read_layers(environ={}, assignments=wrong).read(owner.tables)
    messages = "\n".join(f"{error} {error.hint}" for error in caught.value.each())
    assert "unknown setting 'cluster.adress'" in messages
    assert "did you mean 'cluster.address'?" in messages
    assert "unknown setting 'clusters'" in messages
    assert "pipeline.max_images = 0" in messages
    assert "codecs.use = 7" in messages


def test_a_table_of_an_absent_plugin_is_an_error_unless_it_is_one_of_vlmkit() -> None:
    environ = {"VLMKIT_SERVER__NO_SUCH": "1", "VLMKIT_MONITORS__USE": "[]"}
    layered = read_layers(environ=environ).read()
    assert layered.unread == {"server", "monitors"}
    assert layered.config == Config()
    with pytest.raises(ConfigError, match="unknown setting 'cluster'"):
        read_layers(environ={}, assignments=["cluster.address=x"]).read()


def test_unread_tables_of_the_command_line_and_of_arguments_are_errors() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'server'"):
        read_layers(environ={}, assignments=["server.port=1"]).read()
    with pytest.raises(ConfigError, match="unknown setting 'monitors'"):
        read_layers(environ={}, arguments={"monitors": {"use": ["x"]}}).read()


def test_a_setting_moved_to_the_core_is_refused_without_its_former_owner() -> None:
    with pytest.raises(ConfigError) as caught:
        read_layers(environ={"VLMKIT_SERVER__FETCH__ENABLED": "true"}).read()
    assert caught.value.hint == "it is 'VLMKIT_FETCH__ENABLED' now"


def test_a_table_has_its_defaults_without_its_plugin() -> None:
    assert Config().table("server", ServerSettings) == ServerSettings()
    assert Config().group("monitors").use == ()


@pytest.mark.parametrize(
    ("sets", "environ", "hint"),
    [
        ((), {"VLMKIT_SERVER__FETCH__ENABLED": "true"}, "it is 'VLMKIT_FETCH__ENABLED' now"),
        (("server.fetch.allow_http=true",), {}, "it is 'fetch.allow_http' now"),
    ],
)
def test_the_old_name_of_a_setting_is_refused_with_the_new_one(
    sets: tuple[str, ...], environ: dict[str, str], hint: str
) -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'server\.fetch'") as caught:
        read_layers(environ=environ, assignments=sets).read(VLMKIT_TABLES)
    assert caught.value.hint == hint


PATHS = """
[server]
keys_file = "keys.jsonl"
tls_certificate = "tls/certificate.pem"
tls_private_key = "tls/key.pem"
access_log = "../access.jsonl"
audit_log = "/var/log/audit.jsonl"
limits.usage_file = "usage.sqlite"
data.folder = "data"
"""


def server_paths(config: Config) -> dict[str, str]:
    return {named.setting: named.path for named in named_paths(config.server, ServerSettings)}


def test_paths_of_the_server_in_a_file_are_relative_to_its_folder(tmp_path: Path) -> None:
    assert server_paths(read(write(tmp_path, PATHS)).config) == {
        "keys_file": str(tmp_path / "keys.jsonl"),
        "tls_certificate": str(tmp_path / "tls/certificate.pem"),
        "tls_private_key": str(tmp_path / "tls/key.pem"),
        "access_log": str(tmp_path / "../access.jsonl"),
        "audit_log": "/var/log/audit.jsonl",
        "limits.usage_file": str(tmp_path / "usage.sqlite"),
        "data.folder": str(tmp_path / "data"),
    }


def test_paths_of_other_sources_are_relative_to_the_working_directory(tmp_path: Path) -> None:
    file = write(tmp_path, "[server]\nkeys_file='a'\naccess_log='b'\naudit_log=''")
    layered = read(
        file,
        "server.access_log=logs/access.jsonl",
        arguments={"server": {"tls_certificate": "certificate.pem"}},
        VLMKIT_SERVER__KEYS_FILE="keys.jsonl",
    )
    assert server_paths(layered.config) == {
        "keys_file": "keys.jsonl",
        "access_log": "logs/access.jsonl",
        "tls_certificate": "certificate.pem",
    }


def test_a_tilde_is_expanded_in_every_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/users/somebody")
    layered = read(write(tmp_path, "[server]\nkeys_file='~/a'"), "server.access_log=~/b")
    paths = {"keys_file": "/users/somebody/a", "access_log": "/users/somebody/b"}
    assert server_paths(layered.config) == paths


def resolved_paths(layered: Any, plugins: loader.Plugins) -> Config:
    return with_provider_paths(layered, plugins).config


@pytest.mark.parametrize("use", ["toy", "auto"])
def test_paths_of_providers_in_a_file_are_relative_to_its_folder(
    use: str, tmp_path: Path, plugins: loader.Plugins
) -> None:
    file = write(
        tmp_path,
        f"[engine]\nuse='{use}'\nnotes='n.txt'\ndevice='d'\n[observers]\nuse=['log']\n"
        "[observers.log]\nfile='log.jsonl'\n[[models]]\nmodel='m'\nengine.notes='own.txt'",
    )
    config = resolved_paths(read(file), plugins)
    notes, own_file = str(tmp_path / "n.txt"), str(tmp_path / "own.txt")
    assert config.engine.settings == {"notes": notes, "device": "d"}
    assert config.observers.settings == {"log": {"file": str(tmp_path / "log.jsonl")}}
    assert config.component("engine", config.models[0]).settings["notes"] == own_file
    config = resolved_paths(read(file, "engine.notes=n.txt"), plugins)
    assert config.engine.settings["notes"] == "n.txt"


def test_a_path_beside_a_relative_config_file_stays_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plugins: loader.Plugins
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    file = write(Path(), "[engine]\nnotes='n'\n[server]\nkeys_file='k'", "configs/vlmkit.toml")
    config = resolved_paths(read(file), plugins)
    assert (config.engine.settings["notes"], config.server.keys_file) == ("configs/n", "configs/k")


def test_every_path_of_a_config_is_listed_with_its_setting(
    tmp_path: Path, plugins: loader.Plugins
) -> None:
    text = "[engine]\nuse='toy'\nnotes='n'\n[observers]\nuse=['log']\nlog.file='l'\n"
    config = resolved_paths(read(write(tmp_path, f"{text}[server]\ndata.folder='d'")), plugins)
    assert paths_of(config, plugins) == [
        ("server.data.folder", str(tmp_path / "d"), "folder"),
        ("engine.notes", str(tmp_path / "n"), "read"),
        ("observers.log.file", str(tmp_path / "l"), "append"),
    ]


@pytest.mark.parametrize("file", ["vlmkit.toml", "configs/vlmkit.toml"])
def test_a_relative_folder_stays_a_folder_when_the_config_path_is_relative(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not become the name of a packaged model or of a model on the hub."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    model = read(write(Path(), "model='./mock'", file)).config.model
    assert model is not None
    assert model.startswith(".")
    assert Path(model) == Path(file).with_name("mock")


def test_a_config_can_be_based_on_another() -> None:
    base = Config(model="a", engine=Component(use="toy", settings={"device": "x"}))
    layers = read_layers(environ={}, base=base, arguments={"engine": {"num_lanes": 3}})
    layered = layers.read()
    assert layered.config.engine == Component(use="toy", settings={"device": "x", "num_lanes": 3})
    assert layered.config.model == "a"
    assert read_layers(environ={}, base=base).read().config == base


scalars = st.one_of(
    st.integers(-(2**40), 2**40), st.booleans(), st.text(st.characters(codec="utf-8"), max_size=9)
)


@given(
    st.dictionaries(
        st.sampled_from(COMPONENTS), st.dictionaries(st.text("abc", min_size=1), scalars)
    )
)
def test_settings_of_providers_are_passed_unchanged(sections: dict[str, dict[str, Any]]) -> None:
    config = read_layers(environ={}, arguments=sections).read(VLMKIT_TABLES).config
    for section, given_settings in sections.items():
        assert config.component(section).settings == given_settings


@given(st.integers(1, 10**9))
def test_the_environment_and_the_command_line_parse_values_alike(number: int) -> None:
    by_set = read(None, f"pipeline.max_images={number}").config
    by_env = read(VLMKIT_PIPELINE__MAX_IMAGES=str(number)).config
    assert by_set == by_env
    assert by_set.pipeline.max_images == number


# Mistakes.


def failure(*arguments: Any, **environ: Any) -> tuple[str, str]:
    with pytest.raises(ConfigError) as caught:
        read(*arguments, **environ)
    return str(caught.value), caught.value.hint


@pytest.mark.parametrize(
    ("assignment", "meant"),
    [
        ("server.prot=1", "server.port"),
        ("servr.port=1", "server.port"),
        ("engin.use=toy", "engine.use"),
        ("max_images=1", "pipeline.max_images"),
        ("pipeline.images.max_byte=1", "pipeline.images.max_bytes"),
        ("server_port=1", "server.port"),
    ],
)
def test_an_unknown_setting_is_reported_with_the_nearest_name(assignment: str, meant: str) -> None:
    message, hint = failure(None, assignment)
    assert message.startswith("unknown setting ")
    assert hint == f"did you mean {meant!r}?"


def test_an_unknown_variable_gets_a_hint_in_its_own_spelling() -> None:
    assert failure(VLMKIT_SERVER_PORT="1") == (
        "unknown setting 'server_port' (environment VLMKIT_SERVER_PORT)",
        "did you mean 'VLMKIT_SERVER__PORT'?",
    )


def test_an_unknown_setting_without_a_near_name_points_to_the_list() -> None:
    assert failure(None, "qqqq=1")[1] == "`vlmkit config schema` lists every setting"


def test_variables_of_other_programs_and_reserved_ones_are_no_settings() -> None:
    assert read(VLMKIT_BLOCK="a,b", VLMKITTEN="1", PATH="x").config == CONFIG()


def service_variables(name: str) -> dict[str, str]:
    """Return the variables that Kubernetes sets for a Service with two named ports."""
    links = {
        f"{name}_PORT_{port}_{protocol.upper()}{key}": value
        for port, protocol in ((8000, "tcp"), (53, "udp"))
        for key, value in {
            "": f"{protocol}://10.0.0.7:{port}",
            "_PROTO": protocol,
            "_PORT": str(port),
            "_ADDR": "10.0.0.7",
        }.items()
    }
    return links | {
        f"{name}_SERVICE_HOST": "10.0.0.7",
        f"{name}_SERVICE_PORT": "8000",
        f"{name}_SERVICE_PORT_HTTP_MAIN": "8000",
        f"{name}_SERVICE_PORT_DNS": "53",
        f"{name}_PORT": "tcp://10.0.0.7:8000",
    }


@pytest.mark.parametrize("name", ["VLMKIT", "VLMKIT_SERVER", "VLMKIT_SERVICE", "VLMKIT_PORT"])
def test_variables_that_kubernetes_sets_for_a_service_are_no_settings(name: str) -> None:
    layered = read(VLMKIT_SERVER__PORT="9000", **service_variables(name))
    assert layered.config == CONFIG(server=ServerSettings(port=9000))


@pytest.mark.parametrize(
    "mistake",
    [
        {"VLMKIT_PORT": "9000"},
        {"VLMKIT_SERVICE_PORT": "9000"},
        {"VLMKIT_SERVER_PORT": "9000"},
        {"VLMKIT_SERVER_PORT": "9000", **service_variables("VLMKIT")},
        {"VLMKIT_SERVER__PORT": "tcp://10.0.0.7:8000"},
        {"VLMKIT_SERVER__PROT": "9000", **service_variables("VLMKIT")},
        {"VLMKIT_SERVICE_HOTS": "10.0.0.7", **service_variables("VLMKIT")},
    ],
)
def test_a_misspelt_variable_is_refused_beside_those_of_a_service(mistake: dict[str, str]) -> None:
    message, _ = failure(**mistake)
    assert f"(environment {next(iter(mistake))})" in message


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        (
            "server.port=-1",
            "server.port = -1 (--set server.port): expected a whole number from 0 to 65535",
        ),
        (
            "server.port=x",
            "server.port = 'x' (--set server.port): expected a whole number from 0 to 65535",
        ),
        ("plugins=[1]", "plugins.files[0] = 1 (--set plugins): expected text"),
        ("server=5", "'server' is a section, not one value (--set server)"),
        ("model.x=5", "'model' has no key 'x' (--set model.x)"),
        ("server.port", "--set 'server.port' must read section.key=value"),
        ("server..port=1", "--set 'server..port=1' must read section.key=value"),
        (
            'models=[{model="a", nam="b"}]',
            "unknown setting 'models[0].nam' (--set models)",
        ),
        (
            'models=[{name="b"}]',
            "models[0] (--set models): model is missing",
        ),
    ],
)
def test_a_wrong_value_is_reported_with_its_source(assignment: str, message: str) -> None:
    assert failure(None, assignment)[0] == message


def test_all_mistakes_are_reported_together(tmp_path: Path) -> None:
    text = "[server]\nprot=1\nhost=5\nkeepalive_s=-1\n[pipeline]\nmax_images=0\nimages.colour=1"
    with pytest.raises(ConfigError) as caught:
        read(write(tmp_path, text), "engin.use=x", "server.port=web")
    messages = [str(each).partition(" (")[0] for each in (caught.value, *caught.value.others)]
    assert messages == [
        "unknown setting 'server.prot'",
        "unknown setting 'pipeline.images.colour'",
        "unknown setting 'engin'",
        "server.host = 5",
        "server.keepalive_s = -1",
        "pipeline.max_images = 0",
        "server.port = 'web'",
    ]
    assert caught.value.hint == "did you mean 'server.port'?"


@pytest.mark.parametrize(
    ("assignment", "problem", "hint"),
    [
        ("server.port=-1", "a whole number from 0 to 65535", "take 0 or more"),
        ("server.port=70000", "a whole number from 0 to 65535", "take 65535 or less"),
        ("server.keepalive_s=0", "a number above 0 and at most 86400", "take more than 0"),
        ("pipeline.max_images=0", "a whole number of at least 1", "take 1 or more"),
        ("server.log_format=jsn", "one of text, json", "did you mean 'json'?"),
        ('server.data={max_bytes="9"}', "a whole number of at least 1", "without quotes: 9"),
        ("server.allowed_hosts=a.example", "a list", 'write a list: ["a.example"]'),
        ("server.allowed_hosts=[7]", "a host name in small letters", "'models.example.com'"),
        (
            'server.limits.key=["tokens=9/second"]',
            "and minute, hour, day or",
            "'tokens=20000/minute'",
        ),
    ],
)
def test_a_wrong_value_gets_a_hint_what_to_write(assignment: str, problem: str, hint: str) -> None:
    messages = failure(None, assignment)
    assert problem in messages[0]
    assert hint in messages[1]
    assert "`int`" not in messages[0]
    assert "regex" not in messages[0]


def test_every_wrong_item_of_a_list_is_reported() -> None:
    wrong = 'server.limits.key=["tokens=9/second", "requests=1/day", "tokens=x/day", 5]'
    with pytest.raises(ConfigError) as caught:
        read(None, wrong)
    messages = [str(each).partition(" (")[0] for each in caught.value.each()]
    assert messages == [
        "server.limits.key[0] = 'tokens=9/second'",
        "server.limits.key[2] = 'tokens=x/day'",
        "server.limits.key[3] = 5",
    ]


def test_values_that_exclude_each_other_are_reported_in_a_sentence() -> None:
    message, _ = failure(None, 'server.limits.key=["tokens=9/day", "tokens=8/day"]')
    assert message == "server.limits: there are two limits of tokens a day"


def test_all_mistakes_of_models_are_reported_with_their_paths() -> None:
    wrong = 'models=[{model=5, engine=7}, {}, {model="a", aliases="b"}]'
    found = read_layers(None, environ={}, assignments=[wrong]).read(VLMKIT_TABLES, diagnoses=True)
    messages = [str(each).replace(" (--set models)", "") for each in found.errors]
    assert messages == [
        "models[0].engine = 7: expected a table",
        "models[0].model = 5: expected text",
        "models[1]: model is missing",
        "models[2].aliases = 'b': expected a list",
    ]
    assert found.config.models == (ModelEntry(model="a"),)


def test_mistakes_of_aliases_with_fields_are_reported_with_their_paths() -> None:
    aliases = '["x", {name="y", fields={a={b=1}}}, {name=""}, {name="z", fields={a=1}, c=2}, 5]'
    wrong = f'models=[{{model="a", aliases={aliases}}}]'
    found = read_layers(None, environ={}, assignments=[wrong]).read(VLMKIT_TABLES, diagnoses=True)
    messages = [str(each).replace(" (--set models)", "") for each in found.errors]
    assert messages == [
        "models[0].aliases[2]: fields is missing",
        "models[0].aliases[2].name = '': expected text of 1 to 256 characters",
        "unknown setting 'models[0].aliases[3].c'",
        "models[0].aliases[3].fields.a = 1: expected a table",
        "models[0].aliases[4] = 5: expected text of 1 to 256 characters or a table",
    ]


def test_names_of_a_model_include_aliases_with_fields_and_must_differ() -> None:
    aliases = '["x", {name="y", fields={a={b=1}}}]'
    (entry,) = read(None, f'models=[{{model="a", aliases={aliases}}}]').config.entries()
    assert entry.names == ("a", "x", "y")
    assert entry.alias_fields == {"y": {"a": {"b": 1}}}
    message, _ = failure(None, f'models=[{{model="y"}}, {{model="a", aliases={aliases}}}]')
    assert message == "two models are called 'y'"


def test_a_provider_name_that_is_no_text_is_reported_with_its_model(
    plugins: loader.Plugins,
) -> None:
    config = read(None, 'models=[{model="a", engine={use=7}}]').config
    with pytest.raises(ConfigError, match=r"engine\.use = 7 of model 'a': expected"):
        check_components(config, plugins)


def test_a_wrong_secret_is_not_quoted() -> None:
    with pytest.raises(ConfigError) as caught:
        read(None, "server.api_key=s3cret", "server.api_key_file=5")
    messages = "".join(f"{each}{each.hint}" for each in caught.value.each())
    assert "s3cret" not in messages
    assert "server.api_key = *** (--set server.api_key): expected 16 to 512 letters" in messages


def test_wrong_settings_can_be_skipped_and_reported(tmp_path: Path) -> None:
    text = """
    model = "a"
    [server]
    prot = 1
    port = "web"
    keepalive_s = 7
    limits.key = ["tokens=9/second", "requests=1/day"]
    data = 5
    [[models]]
    model = "b"
    nam = 1
    load = "never"
    aliases = ["x", ""]
    [[models]]
    name = "c"
    [[models]]
    model = "b"
    """
    found = read_layers(write(tmp_path, text), environ={}).read(VLMKIT_TABLES, diagnoses=True)
    messages = [str(each).partition(" (")[0] for each in found.errors]
    assert messages == [
        "unknown setting 'server.prot'",
        "'server.data' is a section, not one value",
        "server.port = 'web'",
        "server.limits.key[0] = 'tokens=9/second'",
        "unknown setting 'models[0].nam'",
        "models[0].aliases[1] = ''",
        "models[0].load = 'never'",
        "models[1]",
        "both model and models are set",
        "two models are called 'b'",
    ]
    server = found.config.server
    assert (server.port, server.keepalive_s, server.limits.key) == (8000, 7, ("requests=1/day",))
    assert found.config.models == (ModelEntry(model="b", aliases=("x",)),)
    assert found.unsound >= {"server.port", "server.data", "server.limits.key", "models.load"}


def test_a_value_for_a_section_gets_the_hint_to_set_use() -> None:
    assert failure(None, "engine=toy")[1] == "did you mean 'engine.use'?"


def test_a_single_plugin_file_gets_the_hint_to_write_a_list() -> None:
    assert failure(None, "plugins=mine.py")[1] == 'write a list of files: ["mine.py"]'


def test_a_misspelt_key_of_a_model_is_reported_with_the_nearest_name(tmp_path: Path) -> None:
    file = write(tmp_path, "[[models]]\nmodel='a'\n[models.engin]\nuse='toy'")
    assert failure(file)[1] == "did you mean 'engine'?"


def test_a_single_models_table_gets_the_hint_to_write_a_list(tmp_path: Path) -> None:
    assert failure(write(tmp_path, "[models]\nmodel='a'"))[1] == "write [[models]]"


def test_an_unreadable_config_file_is_a_config_error(tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    assert failure(missing)[0] == (
        f"config file {str(missing)!r} cannot be read: No such file or directory"
    )
    assert "is not valid TOML" in failure(write(tmp_path, "a = = 1"))[0]
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"model = '\xe9'")
    assert "is not valid TOML" in failure(latin)[0]


def test_setting_both_model_and_models_is_an_error() -> None:
    message, hint = failure(None, "model=a", 'models=[{model="b"}]')
    assert (message, hint) == ("both model and models are set", "keep one of them")


def test_two_models_cannot_share_a_name() -> None:
    message, _ = failure(None, 'models=[{model="a"}, {model="b", name="a"}]')
    assert message == "two models are called 'a'"


# Models and their own sections.


def test_a_single_model_is_an_entry_of_models() -> None:
    config = read(None, "model=a", "revision=main").config
    assert config.entries() == (ModelEntry(model="a", revision="main"),)
    assert Config().entries() == ()


def test_keys_of_a_model_override_the_section() -> None:
    config = Config(engine=Component(use="toy", settings={"device": "x", "num_lanes": 1}))
    same = ModelEntry(model="m", engine={"num_lanes": 5})
    assert config.component("engine", same).settings == {"device": "x", "num_lanes": 5}


def test_a_model_with_another_provider_ignores_the_settings_of_the_section() -> None:
    config = Config(engine=Component(use="toy", settings={"device": "x"}))
    other = ModelEntry(model="m", engine={"use": "other", "num_lanes": 5})
    assert config.component("engine", other) == Component(use="other", settings={"num_lanes": 5})


# Settings of providers.


def test_settings_of_a_named_provider_are_checked(plugins: loader.Plugins) -> None:
    check_components(read(None, "engine.use=toy", "engine.num_lanes=3").config, plugins)
    with pytest.raises(ConfigError) as caught:
        check_components(read(None, "engine.use=toy", "engine.num_lane=3").config, plugins)
    assert str(caught.value) == "engine 'toy' has no setting 'num_lane'"
    assert caught.value.hint == "did you mean 'num_lanes'?"
    with pytest.raises(
        ConfigError, match="toy': num_lanes = 0: expected a whole number of at least 1"
    ):
        check_components(read(None, "engine.use=toy", "engine.num_lanes=0").config, plugins)


def test_settings_without_a_provider_must_suit_one(plugins: loader.Plugins) -> None:
    check_components(read(None, "engine.num_lanes=3").config, plugins)
    with pytest.raises(ConfigError) as caught:
        check_components(read(None, "engine.num_lane=3").config, plugins)
    assert str(caught.value) == "no installed engine has a setting 'num_lane'"
    assert caught.value.hint == "did you mean 'num_lanes'?"


def test_sections_of_each_model_are_checked(plugins: loader.Plugins) -> None:
    text = 'models=[{model="a", engine={use="toy", lanes=1}}]'
    with pytest.raises(ConfigError, match="engine 'toy' has no setting 'lanes'"):
        check_components(read(None, text).config, plugins)


def test_an_unknown_provider_is_reported_with_the_nearest_name(plugins: loader.Plugins) -> None:
    with pytest.raises(UnknownPlugin) as caught:
        check_components(read(None, "engine.use=tuy").config, plugins)
    assert caught.value.hint == "did you mean 'toy'?"


def test_an_unknown_provider_is_reported_with_the_plugins_that_failed_to_load(
    tmp_path: Path,
) -> None:
    file = write(tmp_path, "import nothing_of_that_name", "bad.py")
    broken = loader.load(files=[file], entry_points=[])
    with pytest.raises(UnknownPlugin, match=r"could not be loaded: .*ModuleNotFoundError"):
        check_components(read(None, "engine.use=toy").config, broken)


def test_a_provider_that_cannot_run_on_this_machine_is_refused(plugins: loader.Plugins) -> None:
    with pytest.raises(PluginUnavailable, match="engine 'absent' cannot be used: no such device"):
        check_components(read(None, "engine.use=absent").config, plugins)


# Shown settings and generated pages.


def test_secrets_are_never_shown_but_switches_are() -> None:
    layered = read(None, "engine.api_key=abc", "engine.hub_tokens=2", "sampler.password=")
    shown = {s.path: s.shown for s in layered.settings()}
    assert shown["engine.api_key"] == "***"
    assert shown["engine.hub_tokens"] == 2
    assert shown["sampler.password"] == ""
    assert shown["server.allow_public_without_key"] is False


@pytest.mark.parametrize(
    "struct", [Config, ModelEntry, Component, PipelineSettings, ServerSettings]
)
def test_every_field_has_a_description(struct: type[msgspec.Struct]) -> None:
    meanings = descriptions(struct)
    for field in msgspec.structs.fields(struct):
        assert re.search(r"\w+ \w+", meanings.get(field.name, "")), field.name


def test_descriptions_are_read_whole_and_from_base_classes(plugins: loader.Plugins) -> None:
    struct = plugins.engines.get("toy").settings
    assert struct is not None
    assert descriptions(struct) == {
        "device": "where to compute; a second line of it.",
        "num_lanes": "how many lanes.",
        "notes": "a file.",
    }


DOCS = Path(__file__).parents[3] / "docs"


def test_the_reference_lists_every_setting_with_its_default_and_description() -> None:
    page = (DOCS / "reference/config.md").read_text()
    rows = {
        f"| `{s.path}` | `{msgspec.json.encode(s.value).decode()}` | {s.description} |"
        for s in read().settings()
    }
    table = page.partition("## ")[0]
    assert {line for line in table.splitlines() if line.startswith("| `")} == rows
    for name, meaning in {**descriptions(ModelEntry), **RESERVED_VARIABLES}.items():
        assert re.search(rf"\| `{name}` \|.* {re.escape(meaning)} \|", page), name


def test_files_of_the_guide_are_valid(tmp_path: Path) -> None:
    files = re.findall(r"```toml\n(.*?)```", (DOCS / "how-to/configure.md").read_text(), re.DOTALL)
    assert len(files) == 6
    for file in files:
        read(write(tmp_path, file))


def test_the_schema_describes_the_core_and_every_provider(plugins: loader.Plugins) -> None:
    schema = json_schema(plugins)
    json.dumps(schema)
    assert "$ref" not in json.dumps(schema["properties"])
    for path in known_paths(Config):
        if path[-1] != "use":
            node = schema
            for key in path:
                node = node["properties"][key]
            assert node["description"]
    forms = {form["title"]: form for form in schema["properties"]["engine"]["anyOf"]}
    assert set(forms) == {"auto", "absent", "toy"}
    assert forms["toy"]["properties"]["use"] == {"const": "toy"}
    assert forms["toy"]["properties"]["num_lanes"]["minimum"] == 1
    assert forms["toy"]["properties"]["num_lanes"]["description"] == "how many lanes."
    assert forms["toy"]["additionalProperties"] is False


def test_a_setting_with_a_few_possible_values_lists_them() -> None:
    with pytest.raises(ConfigError, match=r"server\.log_format = 'xml' .*one of text, json"):
        read(None, "server.log_format=xml")


def test_limits_and_paths_named_like_secrets_are_shown() -> None:
    layered = read(None, 'server.limits.key=["requests=1/minute"]', "server.tls_private_key=/a.pem")
    shown = {s.path: s.shown for s in layered.settings()}
    assert shown["server.limits.key"] in (["requests=1/minute"], ("requests=1/minute",))
    assert shown["server.tls_private_key"] == "/a.pem"
