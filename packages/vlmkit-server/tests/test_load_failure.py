"""A model that cannot be loaded: the log has the cause, and other models are served."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import openai
import pytest
from running_server import eventually, http_client

BROKEN = '[[models]]\nname = "{}"\nmodel = "./folder"\n'
SOUND = '[[models]]\nmodel = "mock"\nname = "sound"\n'


@contextmanager
def command(folder, *models):
    """Run ``vlmkit serve`` with models, some of which cannot be loaded."""
    (folder / "folder").mkdir()
    (folder / "folder/config.json").write_text('{"model_type": "unheard_of"}')
    (folder / "vlmkit.toml").write_text("\n".join(models))
    arguments = ["serve", "--config", "vlmkit.toml", "--port", "0"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "vlmkit", *arguments], cwd=folder, stderr=log, env=os.environ
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("is_first", [True, False])
def test_a_model_that_fails_to_load_leaves_other_models_in_service(tmp_path, is_first):
    models = [BROKEN.format("broken"), SOUND] if is_first else [SOUND, BROKEN.format("broken")]
    with command(tmp_path, *models) as process, http_client() as http:

        def log():
            return (tmp_path / "log").read_text()

        def is_loaded():
            return "'sound' is ready" in log() and "'broken' could not be loaded" in log()

        assert eventually(is_loaded, timeout_s=300)
        url = log().partition("listening on ")[2].split()[0]
        readiness = http.get(f"{url}/readyz")
        assert readiness.status_code == 200
        states = {name: model["state"] for name, model in readiness.json()["models"].items()}
        assert states == {"sound": "ready", "broken": "failed"}
        assert http.get(f"{url}/v1/models/broken").json()["state"] == "failed"
        client = openai.OpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http
        )
        question = [{"role": "user", "content": "hello"}]
        answer = client.chat.completions.create(model="sound", messages=question)
        assert answer.choices[0].message.content == "hello"
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(model="broken", messages=question)
        assert (caught.value.status_code, caught.value.code) == (503, "model_failed")
        assert caught.value.body["message"] == "the model could not be loaded"
        assert "unheard_of" not in json.dumps(caught.value.body)
        assert "Traceback" not in log()
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 0


def test_a_server_whose_models_all_fail_to_load_exits_with_code_1(tmp_path):
    pytest.importorskip("vlmkit_hf")
    with command(tmp_path, BROKEN.format("one"), BROKEN.format("other")) as process:
        assert process.wait(300) == 1
    log = (tmp_path / "log").read_text()
    assert "ERROR model 'one' could not be loaded: " in log
    assert "there are no *.safetensors weights" in log
    assert "\nerror: " in log
    assert "Ask it" not in log
