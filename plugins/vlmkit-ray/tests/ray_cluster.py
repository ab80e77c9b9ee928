"""A small Ray of this machine for tests, and applications on it."""

import os
import signal
from contextlib import contextmanager
from pathlib import Path

import openai
import ray
from ray import serve

import vlmkit_ray
from mock_model import wait_until

PORT = 8123
APP = "vlmkit"
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
    "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
}
LITTLE = "[ray]\ningress_cpus = 0.1\n"


@contextmanager
def cluster():
    """Run Ray for a while, on loopback, with two processors and little memory."""
    os.environ |= ENVIRONMENT
    ray.init(
        address="local",  # not a Ray that an earlier run has left
        num_cpus=2,
        object_store_memory=80 * 2**20,
        include_dashboard=False,
        log_to_driver=bool(os.environ.get("SHOW_RAY")),
    )
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": PORT})
        yield
    finally:
        serve.shutdown()
        ray.shutdown()


def deploy(folder: Path, *models: str, **replicas: object) -> None:
    """Deploy models, each a table of a config, and wait until they answer."""
    table = {"num_cpus": 0.1, "downscale_delay_s": 5.0, "upscale_delay_s": 0.0} | replicas
    lines = [f"{key} = {value}" for key, value in table.items()]
    file = folder / "vlmkit.toml"
    file.write_text(
        "\n".join([*(f"[[models]]\n{each}" for each in models), LITTLE, "[ray.replicas]", *lines])
    )
    serve.run(vlmkit_ray.app({"config": str(file)}), name=APP)


@contextmanager
def deployed(folder: Path, *models: str, **replicas: object):
    """Run an application for a while, and yield a client of it."""
    deploy(folder, *models, **replicas)
    try:
        with openai.OpenAI(
            base_url=f"http://127.0.0.1:{PORT}/v1", api_key="none", max_retries=0
        ) as client:
            wait_until(lambda: all(is_up(client, each.id) for each in client.models.list()))
            yield client
    finally:
        serve.delete(APP)


def is_up(client, model):
    try:
        ask(client, "hello", model)
    except openai.InternalServerError:
        return False
    return True


def ask(client, content, model="mock", **options):
    return client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": content}], **options
    )


def text_of(client, content, model="mock", **options):
    return ask(client, content, model, **options).choices[0].message.content


def num_replicas(deployment="model-mock"):
    """Return how many replicas of a deployment run."""
    states = serve.status().applications[APP].deployments[deployment].replica_states
    return sum(number for state, number in states.items() if "RUNNING" in str(state))


def processes(deployment="model-mock"):
    """Return the processes of the replicas of a deployment."""
    title = f"ray::ServeReplica:{APP}:{deployment}"
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if command.startswith(title) and folder.stat().st_uid == os.getuid():
            found.append(int(folder.name))
    return sorted(found)


def kill(process):
    os.kill(process, signal.SIGKILL)
