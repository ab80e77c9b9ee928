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
