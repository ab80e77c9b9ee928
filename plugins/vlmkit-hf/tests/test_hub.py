"""Models from the hub: fetched files, token and revision, and refused models.

huggingface_hub reads its environment at import, so each test runs it in a new process against a
local hub.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "modules.json": b"[]",
    "1_Pooling/config.json": b'{"pooling_mode_cls_token": true}',
    "chat_template.jinja": b"{{ messages }}",
    "additional_chat_templates/tool_use.jinja": b"{{ tools }}",
    "model-00001-of-00002.safetensors": b"one",
    "model-00002-of-00002.safetensors": b"two",
    "model.safetensors.index.json": b'{"weight_map": {}}',
}
UNWANTED = {
    "pytorch_model.bin": b"pickle",
    "modeling.py": b"code",
    "README.md": b"words",
    "consolidated.safetensors": b"the same again",
    "original/params.json": b"{}",
    "1_Pooling/model.safetensors": b"what is not to be read",
    "1_bag/config.json": b"{}",
    "onnx/model.onnx": b"graph",
}
PROGRAM = """
import json, sys
from vlmkit.errors import CheckpointError
from vlmkit_hf.hub import cache, fetching
reference, revision = json.loads(sys.argv[1])
try:
    checkpoint = fetching.fetch(reference, revision)
    paths = (path for path in checkpoint.path.rglob("*") if path.is_file())
    files = sorted(str(path.relative_to(checkpoint.path)) for path in paths)
    weights = {p.name: p.read_text() for p in checkpoint.path.glob("*.safetensors")}
    answer = {"files": files, "weights": weights, "revision": checkpoint.revision}
except CheckpointError as error:
    answer = {"error": str(error), "hint": error.hint}
print(json.dumps({**answer, "cached": cache.cached_models()}))
"""


def fetch(
    hub: Any, home: Path, reference: str, revision: str | None = None, **environment: str
) -> dict[str, Any]:
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()
    }
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([reference, revision])],
        env={**kept, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    answer: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return answer


def test_only_data_files_of_the_model_are_fetched(hub: Any, tmp_path: Path) -> None:
    hub.add("org/name", main={**FILES, **UNWANTED})
    answer = fetch(hub, tmp_path, "org/name")

    assert answer["files"] == sorted(FILES)
    assert hub.downloaded() == set(FILES)
    assert answer["cached"] == ["org/name"]


def test_an_adapter_is_fetched_without_weights_and_refused_at_load(
    hub: Any, tmp_path: Path
) -> None:
    adapter = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}
    hub.add("org/adapter", main=adapter)

    assert fetch(hub, tmp_path, "org/adapter")["files"] == ["adapter_config.json"]


def test_a_revision_is_fetched_and_pinned(hub: Any, tmp_path: Path) -> None:
    old = {**FILES, "model-00001-of-00002.safetensors": b"older"}
    hub.add("org/name", main=FILES, v1=old)
    answer = fetch(hub, tmp_path, "org/name", "v1")

    assert answer["weights"]["model-00001-of-00002.safetensors"] == "older"
    assert answer["revision"] == "v1"


def test_a_fetched_model_is_found_offline(hub: Any, tmp_path: Path) -> None:
    hub.add("org/name", main={**FILES, **UNWANTED})
    online = fetch(hub, tmp_path, "org/name")
    num_requests = len(hub.requests)
    offline = fetch(hub, tmp_path, "org/name", HF_HUB_OFFLINE="1")

    assert offline == online
    assert len(hub.requests) == num_requests


def test_a_model_that_is_not_cached_is_refused_offline(hub: Any, tmp_path: Path) -> None:
    hub.add("org/name", main=FILES)
    answer = fetch(hub, tmp_path, "org/name", HF_HUB_OFFLINE="1")

    assert answer["error"] == (
        "model 'org/name' is not completely in the cache, and HF_HUB_OFFLINE is set"
    )
    assert hub.requests == []


def test_a_cached_model_needs_no_hub(hub: Any, tmp_path: Path) -> None:
    hub.add("org/name", main=FILES)
    online = fetch(hub, tmp_path, "org/name")
    away = fetch(hub, tmp_path, "org/name", HF_ENDPOINT="http://127.0.0.1:9")
    missing = fetch(hub, tmp_path, "org/other", HF_ENDPOINT="http://127.0.0.1:9")

    assert away["files"] == online["files"]
    assert missing["error"] == (
        "model 'org/other' is not completely in the cache, and the hub cannot be reached"
    )


def test_the_token_of_the_environment_is_sent(hub: Any, tmp_path: Path) -> None:
    hub.add("org/private", main=FILES, token="hf_secret")
    refused = fetch(hub, tmp_path, "org/private")
    answer = fetch(hub, tmp_path, "org/private", HF_TOKEN="hf_secret")

    assert refused["error"] == "model 'org/private' does not exist on the hub, or is private"
    assert "HF_TOKEN" in refused["hint"]
    assert answer["files"] == sorted(FILES)


def test_a_gated_model_says_how_to_get_access(hub: Any, tmp_path: Path) -> None:
    hub.add("org/gated", main=FILES, is_gated=True)
    answer = fetch(hub, tmp_path, "org/gated", HF_TOKEN="hf_other")

    assert answer["error"] == "model 'org/gated' is gated on the hub"
    assert "accept its terms" in answer["hint"]


def test_a_missing_model_or_revision_is_reported_by_name(hub: Any, tmp_path: Path) -> None:
    hub.add("org/name", main=FILES)

    assert fetch(hub, tmp_path, "org/nome")["error"] == (
        "model 'org/nome' does not exist on the hub, or is private"
    )
    assert fetch(hub, tmp_path, "org/name", "v9")["error"] == (
        "model 'org/name' has no revision 'v9' on the hub"
    )


def test_a_model_with_only_pickled_weights_is_refused_unread(hub: Any, tmp_path: Path) -> None:
    files = {"config.json": b"{}", "pytorch_model.bin": b"pickle", "training_args.pt": b"pickle"}
    hub.add("org/name", main=files)
    answer = fetch(hub, tmp_path, "org/name")

    assert answer["error"] == (
        "model 'org/name' has no weights in safetensors or ONNX form on the hub"
    )
    assert hub.downloaded() == {"config.json"}


def test_a_model_with_only_onnx_weights_is_fetched_with_its_folders(
    hub: Any, tmp_path: Path
) -> None:
    files = {"config.json": b"{}", "onnx/model.onnx": b"graph", "onnx/model.onnx_data": b"numbers"}
    hub.add("org/name", main=files)

    assert fetch(hub, tmp_path, "org/name")["files"] == sorted(files)


# Single files.

GGUF_FILES = {
    "config.json": b'{"model_type": "llama"}',
    "README.md": b"words",
    "tiny-Q4_K_M.gguf": b"four bits",
    "tiny-Q8_0.gguf": b"eight bits",
    "old/tiny-Q4_K_M.gguf": b"older",
    "pytorch_model.bin": b"pickle",
}
SINGLE = """
import json, sys
import vlmkit
from vlmkit.assembly.sources import resolve, resolve_local
from vlmkit.config.plugin_loading import load_plugins
from vlmkit.errors import CheckpointError
from vlmkit.plugins.registry import Registry
from vlmkit.settings.plugins import PluginSettings
from vlmkit_hf.hub import cache
asked, files, is_update = json.loads(sys.argv[1])
only = ("vlmkit-hf",)
add = Registry.add
def add_others(self, name, build, **more):  # as if vlmkit-hf had no reader of its own
    if not (self.plugin == "vlmkit-hf" and more.get("suffixes")):
        add(self, name, build, **more)
Registry.add = add_others
plugins = load_plugins(PluginSettings(files=tuple(files), only=only), environ={})
try:
    checkpoint = resolve(asked, plugins, is_update=is_update)
    local = [resolve_local(name, plugins).file.name for name in cache.cached_models()]
    answer = {"name": checkpoint.name, "content": checkpoint.file.read_text(), "local": local,
              "file": checkpoint.file.name, "config": checkpoint.config,
              "towers": [path.name for path in checkpoint.projectors]}
except CheckpointError as error:
    answer = {"error": str(error), "hint": error.hint}
print(json.dumps({**answer, "cached": cache.cached_models()}))
"""
READER = """
import dataclasses
import vlmkit

VLMKIT_API = (1, 0)

@vlmkit.hookimpl
def vlmkit_register_models(registry):
    registry.add("gguf", lambda context: context.files, suffixes=(".gguf",))
"""


def fetch_single(
    hub: Any, home: Path, reference: str, *, reads: bool = True, is_update: bool = False
) -> dict[str, Any]:
    (file := home / "reader.py").write_text(READER)
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()
    }
    asked = json.dumps([reference, [str(file)] if reads else [], is_update])
    run = subprocess.run(
        [sys.executable, "-c", SINGLE, asked],
        env={**kept, "HF_ENDPOINT": hub.url, "HF_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    answer: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return answer


def test_a_tag_fetches_one_file_and_the_configs(hub: Any, tmp_path: Path) -> None:
    hub.add("org/name", main=GGUF_FILES)
    answer = fetch_single(hub, tmp_path, "org/name:q4_k_m")
    assert answer["name"] == "org/name:q4_k_m"
    assert (answer["file"], answer["content"]) == ("tiny-Q4_K_M.gguf", "four bits")
    assert answer["config"] == {"model_type": "llama"}
    assert hub.downloaded() == {"config.json", "tiny-Q4_K_M.gguf"}
    assert answer["cached"] == ["org/name:Q4_K_M"]
    assert answer["local"] == ["tiny-Q4_K_M.gguf"]


def test_a_tag_fetches_one_vision_tower_with_the_file(hub: Any, tmp_path: Path) -> None:
    towers = {f"mmproj-{kind}.gguf": b"a tower" for kind in ("BF16", "F16", "Q8_0")}
    hub.add("org/name", main=GGUF_FILES | towers)
    answer = fetch_single(hub, tmp_path, "org/name:Q8_0")
    assert answer["file"] == "tiny-Q8_0.gguf"
    assert hub.downloaded() == {"config.json", "tiny-Q8_0.gguf", "mmproj-BF16.gguf"}
    assert answer["cached"] == ["org/name:Q8_0"]
    before = len(hub.requests)
    assert fetch_single(hub, tmp_path, "org/name:Q8_0")["content"] == "eight bits"
    assert len(hub.requests) == before
    whole = fetch(hub, tmp_path, "org/name")
    assert whole["hint"].endswith("name one of them: org/name:Q4_K_M, org/name:Q8_0")


def test_one_of_the_vision_towers_that_another_program_fetched_is_selected(
    hub: Any, tmp_path: Path
) -> None:
    towers = {f"mmproj-{kind}.gguf": b"a tower" for kind in ("F32", "F16", "Q8_0")}
    hub.add("org/name", main=GGUF_FILES | towers)
    program = "import huggingface_hub; huggingface_hub.snapshot_download('org/name')"
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()
    }
    environ = {**kept, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environ, timeout=600, check=True)
    assert fetch_single(hub, tmp_path, "org/name:Q8_0")["towers"] == ["mmproj-F16.gguf"]


def test_a_cached_file_needs_no_hub_and_another_one_is_fetched(hub: Any, tmp_path: Path) -> None:
    hub.add("org/name", main=GGUF_FILES)
    fetch_single(hub, tmp_path, "org/name:Q8_0")
    before = len(hub.requests)
    assert fetch_single(hub, tmp_path, "org/name:Q8_0")["content"] == "eight bits"
    assert len(hub.requests) == before
    answer = fetch_single(hub, tmp_path, "org/name:Q4_K_M")
    assert answer["cached"] == ["org/name:Q4_K_M", "org/name:Q8_0"]


def test_an_update_of_a_file_fetches_the_newest(hub: Any, tmp_path: Path) -> None:
    hub.add("org/name", main=GGUF_FILES)
    fetch_single(hub, tmp_path, "org/name:Q8_0")
    hub.add("org/name", main=GGUF_FILES | {"tiny-Q8_0.gguf": b"newer bits"})
    assert fetch_single(hub, tmp_path, "org/name:Q8_0")["content"] == "eight bits"
    newest = fetch_single(hub, tmp_path, "org/name:Q8_0", is_update=True)
    assert newest["content"] == "newer bits"


def test_a_repository_with_only_single_files_needs_no_config(hub: Any, tmp_path: Path) -> None:
    hub.add("org/name", main={"tiny-Q8_0.gguf": b"eight bits"})
    answer = fetch_single(hub, tmp_path, "org/name:Q8_0")
    assert (answer["content"], answer["config"]) == ("eight bits", {})


def test_a_tag_that_fits_no_file_is_refused_with_those_that_are_there(
    hub: Any, tmp_path: Path
) -> None:
    hub.add("org/name", main=GGUF_FILES)
    answer = fetch_single(hub, tmp_path, "org/name:Q2_K")
    assert answer["error"] == "model 'org/name:Q2_K' fits no file of the repository"
    assert answer["hint"] == "it has tiny-Q4_K_M.gguf, tiny-Q8_0.gguf"
    assert not [name for name in hub.downloaded() if name.endswith(".gguf")]


def test_without_a_plugin_that_reads_it_no_file_is_fetched(hub: Any, tmp_path: Path) -> None:
    hub.add("org/name", main=GGUF_FILES)
    answer = fetch_single(hub, tmp_path, "org/name:Q4_K_M", reads=False)
    assert answer["error"] == (
        "model 'org/name:Q4_K_M' is a single file, which no installed plugin reads"
    )
    assert answer["hint"].startswith("install a plugin that owns its suffix, such as '.gguf'")
    assert not hub.requests


def test_a_repository_with_only_gguf_files_names_their_tags(hub: Any, tmp_path: Path) -> None:
    hub.add("org/name", main=GGUF_FILES)
    answer = fetch(hub, tmp_path, "org/name")
    assert answer["error"] == (
        "model 'org/name' has only GGUF files on the hub, each a whole model"
    )
    assert answer["hint"].endswith("name one of them: org/name:Q4_K_M, org/name:Q8_0")


def test_one_file_of_a_repository_is_not_removed_alone(hub: Any, tmp_path: Path) -> None:
    from vlmkit.errors import CheckpointError
    from vlmkit_hf.hub import cache

    with pytest.raises(CheckpointError, match="is deleted as a whole") as caught:
        cache.remove("org/name:Q4_K_M", None)
    assert caught.value.hint == "vlmkit models rm org/name"
