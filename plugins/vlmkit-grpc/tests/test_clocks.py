"""Gateways and workers whose clocks differ, or are set while requests run."""

import os
import re
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path

import openai
import pytest
from test_gateway import is_answered
from test_guide import free_port, is_up

import vlmkit
from mock_model import picture, script, wait_until
from workers import worker

pytestmark = pytest.mark.posix

MINUTE_S = 60
HOUR_S = 60 * MINUTE_S


class Clock:
    """The clock of the processes that get its variables."""

    def __init__(self, file: Path, ahead_s: int) -> None:
        self._file = file
        self.set(ahead_s)
        folders = [str(Path(__file__).parent / "set_clock"), os.environ.get("PYTHONPATH", "")]
        self.variables = {
            "PYTHONPATH": os.pathsep.join(filter(None, folders)),
            "CLOCK_OF_TEST": str(file),
        }

    def set(self, ahead_s: int) -> None:
        """Set the clock so many seconds ahead of the right time."""
        new = self._file.with_suffix(".new")
        new.write_text(str(ahead_s))
        new.replace(self._file)


def times_of(done):
    """Return the start of a request and of each stage of its images."""
    stages = [
        stage
        for image in done.timings.images
        for stage in (image.decode, image.preprocess, image.encode)
    ]
    return [done.timings.began_s, *(stage.began_s for stage in stages if stage.began_s)]


@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S])
def test_times_of_a_request_are_by_the_clock_of_the_gateway(tmp_path, ahead_s):
    clock = Clock(tmp_path / "clock", ahead_s)
    with (
        worker(variables=clock.variables) as process,
        vlmkit.load(process.reference, runner={"use": "grpc"}) as model,
    ):
        before_s = time.time()
        done = model.generate("what?", images=[picture()])
        times = times_of(done)
        assert len(times) > 1
        # The difference of the clocks is estimated, to within the delay of a message.
        assert all(before_s - MINUTE_S <= each <= time.time() + MINUTE_S for each in times)


@contextmanager
def gateway(reference, clock):
    """Run a server in front of workers, and yield a client and its address."""
    port = str(free_port())
    command = [sys.executable, "-m", "vlmkit", "serve", reference, "--port", port]
    address = f"http://127.0.0.1:{port}"
    variables = {**os.environ, **clock.variables}
    with subprocess.Popen(command, env=variables) as process:
        try:
            base_url = f"{address}/v1"
            with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
                wait_until(lambda: is_up(client))
                wait_until(lambda: is_answered(client))
                yield client, address
        finally:
            process.terminate()
        assert process.wait(120) == 0


@pytest.mark.server
def test_clocks_that_are_set_while_requests_run_change_no_answer_and_no_measured_time(tmp_path):
    clocks = [Clock(tmp_path / f"{number}", 0) for number in range(3)]
    with ExitStack() as stack:
        processes = [stack.enter_context(worker(variables=clock.variables)) for clock in clocks[1:]]
        reference = f"grpc://{processes[0].address},{processes[1].address}/mock"
        client, address = stack.enter_context(gateway(reference, clocks[0]))
        prompt = script(text="x" * 40, latency_s=0.02)
        asked = {"model": "mock", "messages": [{"role": "user", "content": prompt}]}
        for ahead_s in ((HOUR_S, 0, -HOUR_S), (-HOUR_S, HOUR_S, 0)):
            chunks = client.chat.completions.create(**asked, stream=True)
            text = next(chunks).choices[0].delta.content or ""
            for clock, each_s in zip(clocks, ahead_s, strict=True):
                clock.set(each_s)
            text += "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            assert text == "x" * 40
        measured = seconds(address)
        assert "http_request" in measured
        assert "request" in measured
        assert all(0 <= each < HOUR_S / 2 for each in measured.values())


def seconds(address):
    """Return the sums of the histograms of seconds that a server has, by their names."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=60) as page:
        text = page.read().decode()
    found = re.findall(r"^vlmkit_(\w+)_seconds_sum\S* (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}
