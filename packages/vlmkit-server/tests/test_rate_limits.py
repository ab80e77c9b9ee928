"""Rate limits of keys and addresses, tested by the official clients on a running server."""

import contextlib
import random
import socket
import sqlite3
import sys
import time

import anthropic
import msgspec
import openai
import pytest
from running_server import (
    chat,
    eventually,
    http_client,
    http_request,
    image_part,
    image_url,
    mock_pipeline,
    process,
    running,
    scripted,
)

from vlmkit.cli import run
from vlmkit.errors import ConfigError
from vlmkit_server.auth.key import new_key
from vlmkit_server.auth.key_file import add_line, read_lines
from vlmkit_server.exchange.service import Service
from vlmkit_server.rate_limits.cost import NOTHING
from vlmkit_server.settings.limits import LimitsSettings
from vlmkit_server.settings.server import ServerSettings

MANY = "1000000/day"


def bearer(secret):
    return {"authorization": f"Bearer {secret}"}


@pytest.fixture
def keys(tmp_path):
    """Create keys; returns a function that adds a key with limits."""
    path = tmp_path / "keys.jsonl"
    path.touch()

    def make(*limits, name="one"):
        key, secret = new_key(name, ("chat", "embed", "tokens", "admin"), limits=limits)
        add_line(path, key)
        return secret

    make.path = path
    return make


def remaining(answer, unit="tokens"):
    return int(answer.headers[f"x-ratelimit-remaining-{unit}"])


def free(server, secret, unit="tokens"):
    return remaining(server.get("/v1/models", headers=bearer(secret)), unit)


def test_an_answer_is_charged_its_usage_and_the_rest_is_released(keys):
    secret = keys(f"tokens={MANY}", f"images={MANY}", f"image_tokens={MANY}")
    with running(keys_file=str(keys.path)) as server:
        parts = [image_part(image_url()), {"type": "text", "text": "what?"}]
        body = chat(max_tokens=500) | {"messages": [{"role": "user", "content": parts}]}
        answer = server.post(body, headers=bearer(secret))
        usage = answer.json()["usage"]
        images = usage["prompt_tokens_details"]["image_tokens"]
        text = usage["prompt_tokens"] - images
        assert usage["completion_tokens"] < 500
        assert eventually(lambda: free(server, secret) == 10**6 - text - usage["completion_tokens"])
        assert free(server, secret, "image-tokens") == 10**6 - images
        assert free(server, secret, "images") == 10**6 - 1
        assert 10**6 - text - 500 <= remaining(answer) < 10**6 - text


def test_a_stream_reports_the_remaining_limit_and_a_disconnect_is_refunded(keys):
    secret = keys(f"tokens={MANY}")
    with running(keys_file=str(keys.path)) as server:
        endless = chat(scripted(text="x", tokens=3000, latency_s=0.01), max_tokens=3000)
        with server.http.stream(
            "POST",
            f"{server.url}/v1/chat/completions",
            json=endless | {"stream": True},
            headers=bearer(secret),
        ) as answer:
            assert remaining(answer) < 10**6 - 3000
            next(answer.iter_bytes())
        assert eventually(server.is_idle)
        assert eventually(lambda: free(server, secret) > 10**6 - 3000)


@pytest.mark.parametrize("unit", ["requests", "tokens", "images", "image_tokens"])
def test_openais_client_raises_its_own_error_with_a_retry_time(keys, unit):
    content = [image_part(image_url()), {"type": "text", "text": "what is in this?"}]
    amount = {"requests": 1, "tokens": 60, "images": 1, "image_tokens": 10}[unit]
    with running(keys_file=str(keys.path)) as server:
        secret = keys(f"{unit}={amount}/hour")
        server.service.keys.reload()
        client = openai.OpenAI(
            base_url=f"{server.url}/v1", api_key=secret, http_client=server.http, max_retries=0
        )

        def ask(times):
            for _ in range(times):
                client.chat.completions.create(
                    model="mock", max_tokens=8, messages=[{"role": "user", "content": content}]
                )

        with pytest.raises(openai.RateLimitError) as caught:
            ask(10)
        error = caught.value
        assert error.code == "rate_limit_exceeded"
        assert error.type == "rate_limit_error"
        assert 0 < int(error.response.headers["retry-after"]) <= 3600
        name = unit.replace("_", "-")
        assert error.response.headers[f"x-ratelimit-limit-{name}"] == str(amount)
        assert error.response.headers[f"x-ratelimit-reset-{name}"].endswith("s")
        assert eventually(server.is_idle)


def test_anthropics_client_raises_its_own_error_type(keys):
    secret = keys("requests=1/minute")
    with running(keys_file=str(keys.path)) as server, http_client() as http:
        client = anthropic.Anthropic(
            base_url=server.url, api_key=secret, http_client=http, max_retries=0
        )
        body = {"model": "mock", "max_tokens": 4, "messages": [{"role": "user", "content": "x"}]}
        first = client.messages.with_raw_response.create(**body)
        assert first.headers["anthropic-ratelimit-requests-remaining"] == "0"
        with pytest.raises(anthropic.RateLimitError) as caught:
            client.messages.create(**body)
        assert caught.value.body["error"]["type"] == "rate_limit_error"
        assert caught.value.response.headers["anthropic-ratelimit-requests-limit"] == "1"
        assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60


def test_openais_client_does_not_retry_a_request_larger_than_its_limit(keys):
    secret = keys("tokens=100/minute")
    with running(keys_file=str(keys.path)) as server:
        sent = []
        client = openai.OpenAI(
            base_url=f"{server.url}/v1", api_key=secret, http_client=server.http, max_retries=5
        )
        server.http.event_hooks["request"].append(sent.append)
        with pytest.raises(openai.RateLimitError, match="no waiting helps"):
            client.chat.completions.create(
                model="mock", max_tokens=101, messages=[{"role": "user", "content": "x"}]
            )
        assert len(sent) == 1
        refused = server.post(chat(max_tokens=101), headers=bearer(secret))
        assert "retry-after" not in refused.headers
        assert free(server, secret) == 100


def test_the_reservation_covers_max_tokens_of_all_choices(keys):
    secret = keys("tokens=200/hour")
    with running(keys_file=str(keys.path)) as server:
        assert server.post(chat(max_tokens=60, n=4), headers=bearer(secret)).status_code == 429
        assert server.post(chat(max_tokens=40, n=4), headers=bearer(secret)).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": ["one text", "another text"], "max_tokens": 8}),
        ("/v1/embeddings", {"input": ["one text", "another text"]}),
        ("/v1/responses", {"input": "one text", "max_output_tokens": 8}),
        ("/v1/responses", {"input": "one text", "max_output_tokens": 8, "background": True}),
        ("/inference/v1/generate", {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 8}}),
    ],
)
def test_every_api_is_charged(keys, path, body):
    secret = keys(f"tokens={MANY}")
    with running(keys_file=str(keys.path)) as server:
        answer = server.post({"model": "mock"} | body, path, headers=bearer(secret))
        assert answer.status_code == 200
        assert eventually(server.is_idle)
        usage = answer.json().get("usage")
        if body.get("background"):
            url = f"{path}/{answer.json()['id']}"
            assert eventually(
                lambda: server.get(url, headers=bearer(secret)).json()["usage"], timeout_s=60
            )
            usage = server.get(url, headers=bearer(secret)).json()["usage"]
        assert eventually(lambda: free(server, secret) == 10**6 - usage["total_tokens"])


def test_a_refused_request_is_charged_no_tokens(keys):
    secret = keys(f"tokens={MANY}", f"requests={MANY}")
    with running(
        {"mock": mock_pipeline(max_waiting=1, max_sequences=1)}, keys_file=str(keys.path)
    ) as server:
        assert server.post(chat("x" * 40_000), headers=bearer(secret)).status_code == 400
        assert free(server, secret) == 10**6
        assert free(server, secret, "requests") == 10**6 - 1


def test_each_key_has_its_own_limits_or_the_default_ones(keys):
    first, second, third = keys("requests=1/day"), keys(name="two"), keys("images=1/day", name="x")
    limits = LimitsSettings(key=("requests=2/day",))
    with running(keys_file=str(keys.path), limits=limits) as server:

        def statuses(secret):
            return [server.post(chat(), headers=bearer(secret)).status_code for _ in range(3)]

        assert statuses(first) == [200, 429, 429]
        assert statuses(second) == statuses(third) == [200, 200, 429]


def test_limits_of_keys_can_change_while_the_server_runs(keys):
    secret = keys("requests=2/day")
    with running(keys_file=str(keys.path)) as server:
        assert server.post(chat(), headers=bearer(secret)).status_code == 200
        [key] = read_lines(keys.path)
        keys.path.write_bytes(msgspec.json.encode(msgspec.structs.replace(key, limits=())) + b"\n")
        server.service.keys.reload()
        answer = server.post(chat(), headers=bearer(secret))
        assert answer.status_code == 200
        assert not [name for name in answer.headers if name.startswith("x-ratelimit")]
        limits = ("requests=4/day", "images=3/day")
        changed = msgspec.structs.replace(key, limits=limits)
        keys.path.write_bytes(msgspec.json.encode(changed) + b"\n")
        server.service.keys.reload()
        assert free(server, secret, "images") == 3


def test_addresses_are_limited_without_keys_except_for_health_routes():
    with running(limits=LimitsSettings(address=("requests=1/hour",))) as server:
        assert server.post(chat()).status_code == 200
        refused = server.post(chat())
        assert refused.status_code == 429
        assert "this address" in refused.json()["error"]["message"]
        for path in ("/healthz", "/readyz", "/v1/models"):
            assert server.get(path).status_code == 200


def test_a_request_disconnected_at_any_moment_holds_no_reservation(keys):
    secret = keys("tokens=100000000/minute", f"images={MANY}")
    chance = random.Random(7)
    with running(keys_file=str(keys.path)) as server:
        [key] = read_lines(keys.path)
        for _ in range(60):
            script = scripted(text="x", tokens=chance.choice([1, 50, 2000]), latency_s=0.001)
            parts = [
                image_part(image_url(8 + chance.randrange(40))),
                {"type": "text", "text": script},
            ]
            body = chat(n=chance.choice([1, 4]), stream=chance.random() < 0.5, max_tokens=2000)
            body["messages"] = [{"role": "user", "content": parts}]
            head = f"authorization: Bearer {secret}\r\ncontent-type"
            sent = http_request(body).replace(b"content-type", head.encode(), 1)
            with socket.create_connection(("127.0.0.1", server.port)) as stranger:
                stranger.sendall(sent[: chance.choice([len(sent), len(sent), len(sent) // 2])])
                stranger.settimeout(chance.choice([0.001, 0.01, 0.05]))
                with contextlib.suppress(TimeoutError):
                    stranger.recv(4096)
        assert eventually(server.is_idle)
        usage = server.service.admission.usages.of_key(key)
        assert eventually(lambda: usage._reserved == NOTHING and not usage._reservations)
        standings = usage.standings()
        assert 0 < standings["images"].num_left < 10**6


def test_a_page_of_a_listed_origin_can_read_refusals(keys):
    page = {"origin": "https://chat.example.com"}
    secret = keys("requests=1/day")
    with running(keys_file=str(keys.path), allowed_origins=(page["origin"],)) as server:
        answers = [server.post(chat(), headers=page | bearer(secret)) for _ in range(2)]
        answers.append(server.post(chat(), headers=page))
    assert [answer.status_code for answer in answers] == [200, 429, 401]
    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == page["origin"]
        assert "access-control-allow-credentials" not in answer.headers


def test_a_client_without_limits_gets_no_limit_headers(keys):
    with running() as server:
        answer = server.post(chat())
        assert not [name for name in answer.headers if "ratelimit" in name]


def served(folder, keys, *more, usage_file="usage.sqlite"):
    command = [sys.executable, "-m", "vlmkit", "serve", "mock", "--port", "0"]
    file = [f"server.limits.usage_file={folder / usage_file}"] if usage_file else []
    for setting in (f"server.keys_file={keys.path}", *file, *more):
        command += ["--set", setting]
    return process(command, folder)


def is_ready(server, secret):
    return eventually(lambda: server.get("/readyz", headers=bearer(secret)).status_code == 200)


@pytest.mark.slow
def test_usage_survives_a_kill_and_a_restart(keys, tmp_path):
    secret = keys("requests=5/month", f"tokens={MANY}")

    def send(server, num):
        return [server.post(chat(), headers=bearer(secret)) for _ in range(num)]

    with served(tmp_path, keys) as server:
        assert is_ready(server, secret)
        assert [each.status_code for each in send(server, 2)] == [200, 200]
        base = tmp_path / "usage.sqlite"
        with pytest.raises(ConfigError, match="usage file"):
            Service({}, ServerSettings(limits=LimitsSettings(usage_file=str(base))))
        time.sleep(2.5)  # the file is written every second
        server.process.kill()
        server.process.wait()
    with served(tmp_path, keys) as server:
        assert is_ready(server, secret)
        [answer] = send(server, 1)
        assert answer.headers["x-ratelimit-remaining-requests"] == "2"
        server.process.terminate()
        assert server.process.wait(60) == 0
    with sqlite3.connect(base) as found:
        rows = dict(found.execute("select unit, num_used from usage"))
    assert rows["requests"] == 3
    assert rows["tokens"] > 0
    assert base.stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_without_a_usage_file_limits_of_a_day_and_a_month_restart_with_the_server(keys, tmp_path):
    daily, monthly = keys("requests=2/day"), keys("requests=2/month", name="two")

    def statuses(server, num):
        return [
            server.post(chat(), headers=bearer(secret)).status_code
            for secret in (daily, monthly)
            for _ in range(num)
        ]

    for _ in range(2):
        with served(tmp_path, keys, usage_file="") as server:
            assert is_ready(server, daily)
            assert statuses(server, 3) == [200, 200, 429] * 2
            server.process.terminate()
            assert server.process.wait(60) == 0


KILLS = 8  # a busy machine may delay a write; it never hastens one


@pytest.mark.posix
def test_a_killed_server_loses_a_second_of_usage_and_no_more(keys, tmp_path):
    """An answer in progress counts, too: the file has its tokens so far."""
    secret = keys(f"requests={MANY}", "tokens=1000000000/day")
    endless = scripted(text="x", tokens=100_000, latency_s=0.01)
    for number in range(KILLS):
        (folder := tmp_path / str(number)).mkdir()
        with served(folder, keys) as server:
            assert is_ready(server, secret)
            client = server.client.with_options(api_key=secret)
            stream = client.chat.completions.create(
                **chat(endless, max_tokens=100_000), stream=True
            )
            next(stream)
            answer = server.post(chat(max_tokens=8), headers=bearer(secret))
            ends_s = time.monotonic() + 1.2
            while time.monotonic() < ends_s:
                next(stream)
            server.process.kill()
            server.process.wait()
            stream.close()
        with contextlib.closing(sqlite3.connect(folder / "usage.sqlite")) as found:
            used = dict(found.execute("select unit, num_used from usage"))
        least = answer.json()["usage"]["total_tokens"] + len(endless)
        if used.get("requests") == 2 and used["tokens"] > least:
            return
    pytest.fail(f"usage of more than a second was lost with each of {KILLS} servers")


def test_an_invalid_usage_file_is_reported(tmp_path):
    path = tmp_path / "usage"
    path.write_text("something else, which is long enough to be read as a file of some kind " * 99)
    with pytest.raises(ConfigError, match="usage file"):
        Service({}, ServerSettings(limits=LimitsSettings(usage_file=str(path))))


@pytest.mark.parametrize("period", ["day", "month"])
def test_an_address_can_have_no_limit_of_a_day_or_a_month(period, capsys):
    limit = f'["requests=60/{period}"]'
    assert run(["config", "check", "--set", f"server.limits.address={limit}"]) == 2
    assert "minute or hour" in capsys.readouterr().err
    assert run(["config", "check", "--set", f"server.limits.key={limit}"]) == 0


@pytest.mark.parametrize(
    "limit", ["tokens=1", "tokens=-1/day", "words=1/day", "tokens=1/year", "tokens=1/day\n", ""]
)
def test_the_keys_command_refuses_an_invalid_limit(tmp_path, capsys, limit):
    path = tmp_path / "keys.jsonl"
    assert run(["keys", "add", "one", "--limit", limit, "--file", str(path)]) == 2
    assert not path.exists()
    assert "--limit" in capsys.readouterr().err


def test_the_keys_command_stores_and_lists_limits(tmp_path, capsys):
    path = str(tmp_path / "keys.jsonl")
    limits = ["--limit", "tokens=20000/minute", "--limit", "images=500/day"]
    assert run(["keys", "add", "one", *limits, "--file", path]) == 0
    assert run(["keys", "list", "--file", path]) == 0
    assert "tokens=20000/minute,images=500/day" in capsys.readouterr().out
    twice = ["--limit", "images=1/day", "--limit", "images=2/day"]
    assert run(["keys", "add", "two", *twice, "--file", path]) == 2


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("requests=1/hour", "this takes 1 request, and this API key has not as much left of"),
        ("image_tokens=1/day", "image tokens, and this API key may have 1 image token a day"),
    ],
)
def test_error_messages_use_the_singular_for_an_amount_of_one(limit, expected, keys):
    secret = keys(limit)
    parts = [image_part(image_url()), {"type": "text", "text": "what?"}]
    body = chat(max_tokens=5) | {"messages": [{"role": "user", "content": parts}]}
    with running(keys_file=str(keys.path)) as server:
        answers = [server.post(body, headers=bearer(secret)) for _ in range(2)]
    assert expected in answers[1].json()["error"]["message"]
