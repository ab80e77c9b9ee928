"""A server in front of workers: what its clients see when a worker dies."""

import subprocess
import sys
import threading

import grpc
import openai
import pytest
from test_guide import free_port, is_up
from test_worker_fleet import workers

from mock_model import script, wait_until
from vlmkit_grpc.protocol.worker_pb2 import WatchRequest
from vlmkit_grpc.protocol.worker_pb2_grpc import WorkerStub

pytestmark = [pytest.mark.posix, pytest.mark.server]


def num_open(process):
    """Return how many sequences a worker has."""
    with grpc.insecure_channel(process.address) as channel:
        call = WorkerStub(channel).Watch(WatchRequest(), timeout=60)
        load = next(call).load
        call.cancel()
        return load.num_running + load.num_waiting


@pytest.mark.slow
def test_a_client_gets_its_answer_although_a_worker_dies_before_the_first_token():
    port = str(free_port())
    with workers(2) as processes:
        reference = f"grpc://{processes[0].address},{processes[1].address}/mock"
        command = [sys.executable, "-m", "vlmkit", "serve", reference, "--port", port]
        with subprocess.Popen(command) as gateway:
            try:
                base_url = f"http://127.0.0.1:{port}/v1"
                with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
                    wait_until(lambda: is_up(client))
                    check(client, processes)
            finally:
                gateway.terminate()
            assert gateway.wait(120) == 0


def check(client, processes):
    """Ask for a stream and for a whole answer, and kill the worker of the first request."""
    asked = {
        "model": "mock",
        "messages": [{"role": "user", "content": script(text="abcdef", prefill_latency_s=3.0)}],
    }
    texts = []

    def read():
        chunks = client.chat.completions.create(**asked, stream=True)
        texts.append("".join(chunk.choices[0].delta.content or "" for chunk in chunks))

    reader = threading.Thread(target=read)
    wait_until(lambda: is_answered(client))
    reader.start()
    wait_until(lambda: any(map(num_open, processes)))
    next(each for each in processes if num_open(each)).kill()
    reader.join(300)
    assert texts == ["abcdef"]
    done = client.chat.completions.create(**asked)
    assert done.choices[0].message.content == "abcdef"


def is_answered(client):
    """Return whether the model is loaded."""
    try:
        message = {"role": "user", "content": "hello"}
        client.chat.completions.create(model="mock", messages=[message])
    except openai.InternalServerError:
        return False
    return True
