"""No request blocks the event loop: other clients are answered meanwhile.

``watched_server`` measures a stop as the time that the server's process computes between two ticks
of its loop. Another client requests ``/healthz`` during each attack. A busy machine makes any stop
longer, so an attack runs up to three times, and the shortest result counts: a request that blocks
the loop does so each time.
"""

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from running_server import chat, http_client, http_request, scripted
from watched_server import WatchedProcess, watched

MAX_STOP_S = 0.2
NUM_ATTEMPTS = 3
MANY = 8_000_000

pytestmark = pytest.mark.posix


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedProcess]:
    with watched(tmp_path_factory.mktemp("watched")) as server:
        yield server


@contextmanager
def other_client(server):
    """Request ``/healthz`` all the time; each answer must be a 200."""
    is_over, answers = threading.Event(), []

    def ask():
        with http_client() as http:
            while not is_over.wait(0.01):
                answers.append(http.get(f"{server.url}/healthz").status_code)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    assert set(answers) <= {200}


def without_long_stop(server, attack):
    """Run an attack while another client sends requests; the loop must not block.

    Returns:
        what the attack returned.
    """
    stops_s = []
    while len(stops_s) < NUM_ATTEMPTS:
        server.stops()
        with other_client(server):
            result = attack()
        stops_s.append(server.longest_stop_s())
        if stops_s[-1] < MAX_STOP_S:
            return result
    raise AssertionError(f"the event loop stopped for {stops_s} s")


def post_beside_other_client(server, body, path="/v1/chat/completions"):
    """Send a body while another client sends requests; the loop must not block."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    url = f"{server.url}{path}"
    return without_long_stop(
        server, lambda: server.http.post(url, content=content, headers=headers)
    )


def listed(item, num):
    return b"[" + (item + b",") * (num - 1) + item + b"]"


def messages(num, num_parts):
    part = listed(b'{"type":"text","text":""}', num_parts)
    message = b'{"role":"user","content":' + part + b"}"
    return b'{"model":"mock","messages":' + listed(message, num) + b"}"


def chat_with(field):
    return b'{"model":"mock","messages":[{"role":"user","content":"x"}],' + field + b"}"


def saying(text):
    return b'{"model":"mock","messages":[{"role":"user","content":"' + text + b'"}]}'


TOO_COMPLEX = {  # created when they are sent, since they are large
    "two million empty parts": lambda: messages(2048, 1024),
    "millions of messages": lambda: messages(700_000, 1),
    "lists in a free field": lambda: chat_with(
        b'"chat_template_kwargs":{"a":' + listed(b"[]", MANY) + b"}"
    ),
    "objects in a definition": lambda: chat_with(
        b'"tools":[{"type":"function","function":{"name":"a","parameters":{"a":'
        + listed(b'{"a":1}', MANY // 2)
        + b"}}}]"
    ),
    "objects without effect": lambda: chat_with(b'"prediction":' + listed(b"{}", MANY)),
    "objects that nobody knows": lambda: chat_with(b'"nobody":' + listed(b"{}", MANY)),
    "one key again and again": lambda: chat_with(b'"seed":1,' * (MANY // 2) + b'"seed":1'),
    "millions of stop strings": lambda: chat_with(b'"stop":' + listed(b'"a"', MANY)),
}


@pytest.mark.parametrize("name", TOO_COMPLEX)
def test_a_body_with_millions_of_values_is_refused_before_decoding(server, name):
    answer = post_beside_other_client(server, TOO_COMPLEX[name]())
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "body_too_complex")


@pytest.mark.parametrize(
    ("path", "field", "item", "num"),
    [
        ("/v1/completions", "prompt", b"[1]", MANY),
        ("/v1/embeddings", "input", b'""', MANY),
        ("/detokenize", "tokens", b"1", MANY),
        ("/v1/responses", "input", b'{"type":"message"}', MANY // 8),
    ],
)
def test_a_body_with_millions_of_values_is_refused_by_every_route(server, path, field, item, num):
    body = b'{"model":"mock","%b":%b}' % (field.encode(), listed(item, num))
    assert (
        post_beside_other_client(server, body, path).json()["error"]["code"] == "body_too_complex"
    )


TOO_LONG = {
    "one string": lambda: saying(b"x" * 30_000_000),
    "escapes": lambda: saying(b"\\u00e9" * 5_000_000),
    "quotes": lambda: saying(b'\\"' * 10_000_000),
    "marks that are text": lambda: saying(b"[{:," * 5_000_000),
    "a number": lambda: chat_with(b'"seed":' + b"1" * 20_000_000),
    "a number with a point": lambda: chat_with(b'"top_p":0.' + b"0" * 20_000_000 + b"1e9"),
    "space": lambda: chat_with(b" " * 30_000_000 + b'"seed":"x"'),
    "depth": lambda: chat_with(b'"tools":' + b"[" * 60_000 + b"]" * 60_000),
    "a picture that is none": lambda: saying(b"").replace(
        b'""',
        b'[{"type":"image_url","image_url":{"url":"data:image/png;base64,%b"}}]'
        % (b"iVBO" * 7_000_000),
    ),
}


@pytest.mark.parametrize("name", TOO_LONG)
def test_a_long_body_does_not_block_the_event_loop(server, name):
    assert post_beside_other_client(server, TOO_LONG[name]()).status_code == 400


def test_concurrent_large_images_do_not_block_the_event_loop(server):
    body = TOO_LONG["a picture that is none"]()
    headers = {"content-type": "application/json"}

    def status():
        with http_client() as http:
            url = f"{server.url}/v1/chat/completions"
            return http.post(url, content=body, headers=headers).status_code

    def attack():
        with ThreadPoolExecutor(8) as clients:
            answers = [clients.submit(status) for _ in range(8)]
            return [answer.result() for answer in answers]

    assert without_long_stop(server, attack) == [400] * 8


def test_a_body_at_its_structural_limits_does_not_block_the_event_loop(server):
    answer = post_beside_other_client(server, messages(20, 1000))
    assert answer.status_code == 200
    ids = {"model": "mock", "tokens": [65] * 1_900_000}
    assert post_beside_other_client(server, ids, "/detokenize").json()["prompt"] == "A" * 1_900_000


def test_a_query_that_a_thousand_prompts_repeat_does_not_block_the_event_loop(server):
    query = {"content": [{"type": "text", "text": "a"}] * 1000}
    body = {"model": "mock", "query": query, "documents": ["b"] * 1000, "score_method": "yes_no"}
    answer = post_beside_other_client(server, body, "/v1/rerank")
    assert (answer.status_code, len(answer.json()["results"])) == (200, 1000)


@pytest.mark.parametrize("number", ["2.2250738585072011e-308", "9" * 4000, "0." + "9" * 4000])
def test_slow_to_parse_numbers_are_refused_before_parsing(server, number):
    many = ",".join([number] * (4_000_000 // len(number)))
    tool = {"type": "function", "function": {"name": "f", "parameters": {"enum": ["many"]}}}
    body = json.dumps(chat(tools=[tool])).replace('"many"', many)
    answer = post_beside_other_client(server, body.encode())
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "body_too_complex")


@pytest.mark.parametrize("num_calls", [1, 300])
def test_arguments_of_tool_calls_have_the_structural_limits_of_bodies(server, num_calls):
    text = '{"a": [%s]}' % ",".join(["1e308"] * (240_000 // num_calls))  # noqa: UP031
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": text}}
    said = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [call] * num_calls},
        {"role": "tool", "tool_call_id": "a", "content": "x"},
    ]
    answer = post_beside_other_client(server, chat(messages=said))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (
        400,
        "body_too_complex",
        "messages",
    )


@pytest.mark.parametrize("path", ["/tokenize", "/v1/chat/completions/render"])
def test_a_prompt_of_two_million_characters_does_not_block_the_event_loop(server, path):
    text = "x" * 1_900_000
    body = {"model": "mock", "prompt": text, "return_token_strs": True}
    answer = post_beside_other_client(server, body if path == "/tokenize" else chat(text), path)
    assert answer.status_code == 200
    assert len(answer.json()["tokens" if path == "/tokenize" else "token_ids"]) >= len(text)


def large_answers(num, num_tokens):
    """Return bodies by route whose answers have top logprobs of many tokens."""
    prompt = scripted(text="hello ", tokens=num_tokens)
    long = {"max_tokens": num_tokens}
    return {
        "/v1/chat/completions": chat(prompt, n=num, logprobs=True, top_logprobs=20, **long),
        "/v1/completions": {"model": "mock", "prompt": prompt, "n": num, "logprobs": 20, **long},
        "/v1/responses": {
            "model": "mock",
            "input": prompt,
            "max_output_tokens": num_tokens,
            "top_logprobs": 20,
            "include": ["message.output_text.logprobs"],
        },
    }


def check_large_answers(server, num, num_tokens, streams):
    for path, body in large_answers(num, num_tokens).items():
        for stream in streams:
            answer = post_beside_other_client(server, body | {"stream": stream}, path)
            assert answer.status_code == 200
            assert len(answer.content) > num_tokens * 900


def test_an_answer_of_megabytes_does_not_block_the_event_loop(server):
    check_large_answers(server, 2, 1000, [False, True])


def test_logprobs_of_a_long_prompt_do_not_block_the_event_loop(server):
    answer = post_beside_other_client(server, chat("x" * 10_000, prompt_logprobs=20))
    assert len(answer.json()["prompt_logprobs"]) > 10_000


def test_thousands_of_embeddings_do_not_block_the_event_loop(server):
    answer = post_beside_other_client(
        server, {"model": "mock", "input": ["a"] * 2048}, "/v1/embeddings"
    )
    assert len(answer.json()["data"]) == 2048


@pytest.mark.parametrize("is_written", [False, True])
def test_a_disconnect_from_a_large_answer_does_not_block_the_event_loop(server, is_written):
    body = large_answers(16, 500)["/v1/chat/completions"]

    def attack():
        with socket.create_connection(server.address) as reader:
            reader.sendall(http_request(body))
            if is_written:
                assert b" 200 " in reader.recv(4096)
            else:
                time.sleep(0.5)  # the answer so far is freed
        return server.client.chat.completions.create(**chat("hello", max_tokens=1))

    assert without_long_stop(server, attack)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_answers_of_a_hundred_megabytes_do_not_block_the_event_loop(server):
    check_large_answers(server, 32, 4096, [False])
