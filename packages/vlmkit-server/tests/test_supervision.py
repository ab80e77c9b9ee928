"""Engines that fail or hang: requests fail, and the process ends or the model is loaded again.

The server is the real command; a plugin causes the faults.
"""

import hashlib
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
from running_server import eventually, image_part, image_url, process, scripted

pytestmark = pytest.mark.posix

PLUGIN = Path(__file__).with_name("faulty.py")
CONFIG = textwrap.dedent("""
    plugins = ["{plugin}"]

    [pipeline]
    slow_step_s = {slow_s}
    stuck_step_s = {stuck_s}

    [[models]]
    model = "mock"
    name = "fragile"
    on_engine_failure = "{on_failure}"
    [models.engine]
    use = "faulty"
    max_sequences = 1
    [models.media_encoder]
    use = "faulty"

    [[models]]
    model = "mock"
    name = "sound"
    [models.engine]
    use = "mock"

    [server]
    drain_timeout_s = 3600
    fleet.max_restarts = 2
""")
ENDLESS = scripted(text="x", tokens=4000, latency_s=0.02)


@contextmanager
def command(tmp_path, on_failure="exit", slow_s=60.0, stuck_s=900.0):
    (tmp_path / "vlmkit.toml").write_text(
        CONFIG.format(plugin=PLUGIN, on_failure=on_failure, slow_s=slow_s, stuck_s=stuck_s)
    )
    arguments = ["serve", "--config", "vlmkit.toml", "--port", "0"]
    with process([sys.executable, "-m", "vlmkit", *arguments], tmp_path) as server:
        assert eventually(lambda: server.status() == 200)
        yield server


def inflict(tmp_path, fault):
    """Cause a fault of the plugin.

    The file is renamed into place, so that it is never half written.
    """
    (tmp_path / "new").write_text(fault)
    (tmp_path / "new").rename(tmp_path / "fault")


def ask(server, text="hello", model="fragile", **options):
    return server.client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": text}], **options
    )


def start_answer(server, model="fragile"):
    """Start an answer that does not end by itself."""
    answer = server.stream(ENDLESS, model)
    next(answer)
    return answer


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("panic", marks=pytest.mark.slow),
        "exit",
        pytest.param("hang", marks=pytest.mark.slow),
    ],
)
def test_a_failed_engine_loop_fails_its_requests_and_ends_the_process(tmp_path, fault):
    stuck_s = 0.5 if fault == "hang" else 900.0
    with command(tmp_path, stuck_s=stuck_s) as server, ThreadPoolExecutor(1) as pool:
        answer = start_answer(server)
        waiting = pool.submit(ask, server)
        assert eventually(
            lambda: (
                server.http.get(f"{server.url}/readyz").json()["models"]["fragile"]["num_waiting"]
                == 1
            )
        )
        inflict(tmp_path, fault)
        with pytest.raises(openai.APIError) as caught:
            list(answer)
        assert caught.value.code == "model_failed"
        with pytest.raises(openai.InternalServerError) as refused:
            waiting.result()
        assert (refused.value.status_code, refused.value.code) == (503, "model_failed")
        assert refused.value.response.headers["retry-after"]
        assert server.process.wait(60) == 3
    log = server.log.read_text()
    assert "error: the engine of model 'fragile' failed, and the server ended" in log
    if fault == "hang":
        assert "a step is given up after" in log
        assert "faulty.py:" in log


@pytest.mark.slow
def test_a_hanging_encoder_is_logged_with_its_request_and_ends_the_process(tmp_path):
    with command(tmp_path, slow_s=0.3, stuck_s=1.0) as server:
        inflict(tmp_path, "hang")
        parts = [image_part(image_url()), {"type": "text", "text": "private"}]
        with pytest.raises(openai.InternalServerError) as refused:
            ask(server, parts, extra_headers={"x-request-id": "mine"})
        assert (refused.value.status_code, refused.value.code) == (503, "model_failed")
        assert server.process.wait(60) == 3
    log = server.log.read_text()
    assert "an encoding is still running after" in log
    assert "an encoding is given up after" in log
    assert "media: 1, tokens: 4, requests: chatcmpl-" in log
    assert "private" not in log


def test_a_model_whose_engine_fails_is_reloaded_while_others_continue(tmp_path):
    with command(tmp_path, "restart") as server:
        other, answer = start_answer(server, "sound"), start_answer(server)
        inflict(tmp_path, "panic")
        with pytest.raises(openai.APIError) as caught:
            list(answer)
        assert caught.value.code == "model_failed"
        assert eventually(lambda: "restarting it in 1 s" in server.log.read_text())
        assert ask(server).choices[0].message.content  # waits until the model is loaded again
        next(other)
        other.close()
        assert (server.status("/healthz"), server.status()) == (200, 200)
        server.process.terminate()
        assert server.process.wait(60) == 0
    assert "no more requests are served" in server.log.read_text()


@pytest.mark.slow
def test_a_model_that_fails_to_reload_ends_the_process_after_some_tries(tmp_path):
    with command(tmp_path, "restart") as server:
        answer = start_answer(server)
        (tmp_path / "no_load").touch()
        inflict(tmp_path, "panic")
        with pytest.raises(openai.APIError):
            list(answer)
        assert server.process.wait(60) == 3
    log = server.log.read_text()
    assert "restarting it in 1 s" in log
    assert "restarting it in 2 s" in log
    assert "the engine of model 'fragile' failed again and again, and the server ended" in log


@pytest.mark.slow
def test_a_hanging_model_is_not_loaded_a_second_time(tmp_path):
    with command(tmp_path, "restart", stuck_s=0.5) as server:
        answer = start_answer(server)
        inflict(tmp_path, "hang")
        with pytest.raises(openai.APIError):
            list(answer)
        assert server.process.wait(60) == 3
    assert "the engine of model 'fragile' hangs, and the server ended" in server.log.read_text()


def test_the_log_names_loaded_plugins_and_risks_of_a_public_server(tmp_path):
    pytest.importorskip("vlmkit_hf")
    (tmp_path / "vlmkit.toml").write_text(f'[plugins]\nfiles = ["{PLUGIN}"]\n')
    public = ["--host", "0.0.0.0", "--set", "server.allow_public_without_key=true"]
    health = ["--set", "server.health_port=0", "--set", "server.health_metrics=true"]
    guarded = [*health, "--set", "server.health_host=127.0.0.1"]
    for only, arguments in (
        ("", [*public, *health]),
        ("plugins.only=['vlmkit-mock']", guarded),
    ):
        folder = tmp_path / (only and "only")
        folder.mkdir(exist_ok=True)
        command = ["serve", "mock", "--config", str(tmp_path / "vlmkit.toml"), "--port", "0"]
        command += [*arguments, *(("--set", only) if only else ())]
        with process([sys.executable, "-m", "vlmkit", *command], folder) as server:
            log = server.log.read_text()
        digest = hashlib.sha256(PLUGIN.read_bytes()).hexdigest()
        assert f"plugin 'faulty' of {PLUGIN}, sha256 {digest}" in log
        assert "plugin 'mock' of vlmkit-mock" in log
        assert ("plugins.only is not set: every installed plugin is loaded" in log) is not bool(
            only
        )
        assert ("server.keys_file is not set: any client" in log) is not bool(only)
        open_metrics = "server.health_metrics is set: any client that reaches server.health_port"
        assert (open_metrics in log) is not bool(only)
        unlisted = "plugin 'hf' of vlmkit-hf is not loaded: plugins.only does not list it"
        assert (unlisted in log) is bool(only)
