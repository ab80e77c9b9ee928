"""SIGTERM under load: every accepted request is answered in whole, and others are refused."""

import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import httpx2
import openai
import pytest
from running_server import eventually, image_part, image_url, process, scripted

pytestmark = pytest.mark.posix

NUM_LONG, NUM_OTHERS = 12, 8
REFUSALS = (openai.APIConnectionError, openai.InternalServerError)


class Client:
    """A client of its own connections; it sends one kind of request.

    Attributes:
        answers: its complete answers.
        cut: errors of answers that had begun.
    """

    def __init__(self, url, number, tokens):
        self.answers, self.cut = [], []
        self._number, self._tokens = number, tokens
        self._openai = openai.OpenAI(
            base_url=f"{url}/v1",
            api_key="none",
            max_retries=0,
            http_client=httpx2.Client(trust_env=False, timeout=600),
        )

    def ask(self):
        """Ask once; every other client sends an image, and two of four read a stream."""
        text = scripted(text="x", tokens=self._tokens, latency_s=0.02)
        content = [{"type": "text", "text": text}]
        if self._number % 2:
            content.append(image_part(image_url(8 + len(self.answers) % 50, 8 + self._number)))
        is_streamed = self._number % 4 < 2
        answer = self._openai.chat.completions.create(
            model="mock",
            messages=[{"role": "user", "content": content}],
            max_tokens=self._tokens,
            stream=is_streamed,
        )
        said = self._joined(answer) if is_streamed else answer.choices[0].message.content
        self.answers.append(said)

    def ask_until_refused(self):
        """Ask again and again; return the error of the first request that is not answered."""
        while not self.cut:
            try:
                self.ask()
            except REFUSALS as refusal:
                return refusal
        return None

    def close(self):
        self._openai.close()

    def _joined(self, stream):
        """Join the pieces of a stream. An error is no refusal here: the answer has begun."""
        try:
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        except (openai.APIError, httpx2.HTTPError) as error:
            self.cut.append(error)
            return ""


def num_accepted(server):
    """Return how many requests the scheduler took."""
    page = httpx2.get(f"{server.url}/metrics", trust_env=False, timeout=600).text
    found = re.search(r"^vlmkit_requests_total\S* ([\d.]+)", page, re.MULTILINE)
    return float(found[1]) if found else 0


@pytest.mark.slow
@pytest.mark.parametrize("num_renderers", [0, 2])
def test_a_stop_under_load_loses_no_answer(tmp_path, num_renderers):
    command = [sys.executable, "-m", "vlmkit", "serve", "mock", "--port", "0"]
    command += ["--set", "server.drain_timeout_s=3600"]
    command += ["--set", f"server.num_renderers={num_renderers}"]
    with (
        process(command, tmp_path) as server,
        ExitStack() as clients,
        ThreadPoolExecutor(NUM_LONG + NUM_OTHERS) as pool,
    ):
        assert eventually(lambda: server.status() == 200)
        long, others = (
            [clients.enter_context(closing(Client(server.url, n, tokens))) for n in range(number)]
            for number, tokens in ((NUM_LONG, 400), (NUM_OTHERS, 5))
        )
        asked = [pool.submit(client.ask) for client in long]
        assert eventually(lambda: num_accepted(server) >= NUM_LONG)
        asking = [pool.submit(client.ask_until_refused) for client in others]
        assert eventually(lambda: all(client.answers for client in others))
        server.process.send_signal(signal.SIGTERM)
        for each in asked:
            each.result()
        refusals = [each.result() for each in asking]
        assert server.process.wait(600) == 0
    assert [client.answers for client in long] == [["x" * 400]] * NUM_LONG
    assert {answer for client in others for answer in client.answers} == {"x" * 5}
    assert not [error for client in (*long, *others) for error in client.cut]
    coded = [each.code for each in refusals if isinstance(each, openai.InternalServerError)]
    assert coded
    assert set(coded) == {"server_draining"}
