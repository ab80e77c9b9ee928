"""Batches of the official client: each line is answered once or its error is reported."""

import base64
import errno
import json
import random
from collections import Counter
from pathlib import Path

import openai
import pytest
from running_server import (
    chat,
    eventually,
    http_client,
    image_part,
    image_url,
    mock_pipeline,
    running,
    scripted,
)

from vlmkit_server.apis.batches import line_requests, writer
from vlmkit_server.auth.key import new_key
from vlmkit_server.auth.key_file import add_line
from vlmkit_server.settings.limits import LimitsSettings
from vlmkit_server.settings.server import DataSettings
from vlmkit_server.storage.data_folder import Folder

CHAT = "/v1/chat/completions"
OVER = ("completed", "failed", "expired", "cancelled")
NONE = {"authorization": "Bearer none"}  # the files of the client's own tenant
ENDLESS = scripted(text="x", tokens=4000, latency_s=0.02)


def data_settings(tmp_path, **fields):
    return DataSettings(folder=str(tmp_path / "data"), **fields)


@pytest.fixture(scope="module")
def batch_server(tmp_path_factory):
    with running(data=data_settings(tmp_path_factory.mktemp("batches"))) as server:
        yield server


def line(custom_id, body=None, url=CHAT, **fields):
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body or chat()} | fields


def jsonl(lines):
    return "\n".join(json.dumps(each, ensure_ascii=False) for each in lines).encode()


def start_batch(client, content, endpoint=CHAT, window="24h", **fields):
    """Upload a file and start a batch of it."""
    if not isinstance(content, bytes):
        content = jsonl(content)
    sent = client.files.create(file=("lines.jsonl", content), purpose="batch")
    return client.batches.create(
        input_file_id=sent.id, endpoint=endpoint, completion_window=window, **fields
    )


def wait_for_end(client, batch):
    assert eventually(lambda: client.batches.retrieve(batch.id).status in OVER)
    return client.batches.retrieve(batch.id)


def entries(client, file_id):
    if file_id is None:
        return []
    return [json.loads(each) for each in client.files.content(file_id).text.splitlines()]


def results_of(client, batch):
    """Return the results of all lines, from output and error file, by custom id."""
    found = [
        *entries(client, batch.output_file_id),
        *entries(client, batch.error_file_id),
    ]
    assert len({each["custom_id"] for each in found}) == len(found)
    return {each["custom_id"]: each for each in found}


def answer_text(entry):
    return entry["response"]["body"]["choices"][0]["message"]["content"]


def test_each_line_is_answered_once_with_its_images_and_errors_are_reported(batch_server):
    client = batch_server.client()
    shown = client.files.create(file=b64(image_url(9, 7)), purpose="vision")
    lines = []
    for n in range(200):
        part = image_part(image_url(8 + n % 5, 6))
        if n % 3 == 0:
            part = {"type": "image_url", "image_url": {"file_id": shown.id}}
        content = [{"type": "text", "text": f"n\u00b0 {n}"}, part]
        lines.append(line(f"line {n}", chat(content)))
    lines[17]["body"]["temperature"] = 9
    lines[18]["body"]["model"] = "none"
    lines[20]["body"]["unheard_of"] = 1
    lines[19]["body"]["messages"][0]["content"][1] = image_part("data:image/png;base64,AAAA")
    batch = start_batch(client, lines, metadata={"for": "a test"})
    assert (batch.object, batch.status, batch.metadata) == (
        "batch",
        "validating",
        {"for": "a test"},
    )
    batch = wait_for_end(client, batch)
    assert (batch.status, batch.errors) == ("completed", None)
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (200, 197, 3)
    found = results_of(client, batch)
    assert found.keys() == {f"line {n}" for n in range(200)}
    bad = {each["custom_id"]: each for each in entries(client, batch.error_file_id)}
    assert {name: each["response"]["status_code"] for name, each in bad.items()} == {
        "line 17": 400,
        "line 18": 404,
        "line 19": 400,
    }
    assert bad["line 17"]["response"]["body"]["error"]["param"] == "temperature"
    assert found["line 20"]["response"]["headers"] == {"x-vlmkit-ignored": "unheard_of"}
    assert "headers" not in found["line 21"]["response"]
    for n in (0, 1, 199):
        answer = batch_server.post(lines[n]["body"], headers=NONE).json()
        assert answer_text(found[f"line {n}"]) == answer["choices"][0]["message"]["content"]
    tokens = [
        each["response"]["body"]["usage"]["total_tokens"]
        for name, each in found.items()
        if name not in bad
    ]
    assert batch.usage.total_tokens == sum(tokens)
    output = client.files.retrieve(batch.output_file_id)
    assert output.purpose == "batch_output"
    assert output.expires_at == output.created_at + 30 * 86_400
    assert eventually(batch_server.is_idle)


def b64(url):
    return base64.b64decode(url.partition(",")[2])


@pytest.mark.parametrize(
    ("url", "body", "answer"),
    [
        ("/v1/completions", {"model": "mock", "prompt": "hello", "max_tokens": 3}, "choices"),
        ("/v1/responses", {"model": "mock", "input": "hello"}, "output"),
        ("/v1/embeddings", {"model": "mock", "input": ["one", "two"]}, "data"),
    ],
)
def test_batches_support_each_api(batch_server, url, body, answer):
    client = batch_server.client()
    batch = wait_for_end(
        client, start_batch(client, [line("a", body, url), line("b", body, url)], url)
    )
    found = results_of(client, batch)
    assert found.keys() == {"a", "b"}
    for each in found.values():
        assert each["response"]["status_code"] == 200, each
        assert each["response"]["body"][answer]
    assert batch.usage.total_tokens > 0
    assert batch.model == "mock"


def test_only_a_line_feed_separates_lines_of_input_and_output(batch_server):
    odd = "a\u2028b\u2029c\x85d\u000be\u001cf"
    client = batch_server.client()
    content = b"\xef\xbb\xbf" + jsonl([line(f"1{odd}", chat(odd))]) + b"\r\n\n \n"
    content += jsonl([line("2")]) + b"\n"
    batch = wait_for_end(client, start_batch(client, content))
    found = results_of(
        client, batch
    )  # read by splitlines(), which splits at each of these characters
    assert found.keys() == {f"1{odd}", "2"}
    assert (
        answer_text(found[f"1{odd}"])
        == batch_server.post(chat(odd)).json()["choices"][0]["message"]["content"]
    )


@pytest.mark.parametrize(
    ("content", "code", "number", "param"),
    [
        (b"", "empty_file", None, None),
        (b"\n \n", "empty_file", None, None),
        (b"{", "invalid_json_line", 1, None),
        (b'{"custom_id":"\xff"}', "invalid_json_line", 1, None),
        (b'{"custom_id":"\\ud800"}', "invalid_json_line", 1, None),
        (b'{"body":' + b"[" * 10**5, "invalid_json_line", 1, None),
        (b"[]", "invalid_line", 1, None),
        ([line("a"), {"custom_id": "b", "url": CHAT}], "invalid_line", 2, None),
        ([line(""), line("b")], "invalid_line", 1, "custom_id"),
        ([line("a" * 513)], "invalid_line", 1, "custom_id"),
        ([line(1)], "invalid_line", 1, "custom_id"),
        ([line("a", method="GET")], "invalid_line", 1, "method"),
        ([line("a", body=[1])], "invalid_line", 1, "body"),
        ([line("a", url="/v1/embeddings")], "mismatched_url", 1, "url"),
        ([line("a"), line("b"), line("a")], "duplicate_custom_id", 3, "custom_id"),
        ([line("a", chat(stream=True))], "unsupported_parameter", 1, "body.stream"),
        ([line("a", chat(background=True))], "unsupported_parameter", 1, "body.background"),
    ],
)  # fmt: skip
def test_an_invalid_line_fails_the_batch_with_its_line_number(
    batch_server, content, code, number, param
):
    client = batch_server.client()
    batch = wait_for_end(client, start_batch(client, content))
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("failed", None, None)
    (error,) = batch.errors.data
    assert (error.code, error.line, error.param) == (code, number, param)


def test_a_bounded_number_of_line_errors_is_reported(batch_server):
    client = batch_server.client()
    batch = wait_for_end(client, start_batch(client, b"{\n" * 1000))
    assert [error.line for error in batch.errors.data] == list(range(1, 101))


def test_limits_of_lines_and_files_are_enforced(tmp_path):
    settings = {"max_batch_lines": 3, "max_file_bytes": 200_000}
    with running(data=data_settings(tmp_path, **settings), max_body_bytes=50_000) as server:
        client = server.client()
        batch = wait_for_end(client, start_batch(client, [line(str(n)) for n in range(4)]))
        assert batch.errors.data[0].code == "too_many_lines"
        assert (
            wait_for_end(client, start_batch(client, [line(str(n)) for n in range(3)])).status
            == "completed"
        )
        batch = wait_for_end(
            client, start_batch(client, [line("a"), line("b", chat("x" * 60_000))])
        )
        assert [(error.code, error.line) for error in batch.errors.data] == [("line_too_long", 2)]
        batch = wait_for_end(client, start_batch(client, b"\n" * 100_000))
        assert batch.errors.data[0].code == "too_many_lines"
        with pytest.raises(openai.BadRequestError) as caught:
            start_batch(client, b" " * 200_001)
        assert caught.value.code == "file_too_large"
        assert len(list((tmp_path / "data/files").iterdir())) == len(list(client.files.list()))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"endpoint": "/healthz"}, "endpoint"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"completion_window": "9999d"}, "completion_window"),
        ({"completion_window": "99999999h"}, "completion_window"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}},
         "output_expires_after.seconds"),
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"input_file_id": "../../etc/passwd"}, "input_file_id"),
    ],
)  # fmt: skip
def test_an_invalid_batch_request_is_refused_by_field_name(batch_server, fields, param):
    client = batch_server.client()
    sent = client.files.create(file=jsonl([line("a")]), purpose="batch")
    whole = {"input_file_id": sent.id, "endpoint": CHAT, "completion_window": "24h"}
    with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as caught:
        client.batches.create(**whole | fields)
    assert caught.value.param == param


def test_a_batch_requires_a_file_with_purpose_batch(batch_server):
    client = batch_server.client()
    sent = client.files.create(file=jsonl([line("a")]), purpose="user_data")
    with pytest.raises(openai.BadRequestError) as caught:
        client.batches.create(input_file_id=sent.id, endpoint=CHAT, completion_window="24h")
    assert caught.value.param == "input_file_id"


def test_batches_are_listed_in_pages(tmp_path):
    with running(data=data_settings(tmp_path)) as server:
        client = server.client()
        assert list(client.batches.list()) == []
        ids = [start_batch(client, [line(str(n))]).id for n in range(5)]
        assert [batch.id for batch in client.batches.list(limit=2)] == ids[::-1]
        first = client.batches.list(limit=2)
        assert (len(first.data), first.has_more) == (2, True)
        assert [b.id for b in client.batches.list(after=ids[2])] == [ids[1], ids[0]]
        for query in ({"after": "batch_none"}, {"limit": 0}, {"limit": 101}):
            with pytest.raises(openai.BadRequestError):
                client.batches.list(**query)
        with pytest.raises(openai.NotFoundError) as caught:
            client.batches.retrieve("batch_none")
        assert caught.value.code == "batch_not_found"


def test_cancelling_a_running_batch_keeps_finished_answers(tmp_path):
    with running(data=data_settings(tmp_path, max_batch_requests=3)) as server:
        client = server.client()
        quick = [line(str(n)) for n in range(10)]
        slow = [line(str(n), chat(ENDLESS)) for n in range(10, 40)]
        batch = start_batch(client, [*quick, *slow])
        done = lambda: client.batches.retrieve(batch.id).request_counts.completed  # noqa: E731
        assert eventually(lambda: done() == 10)
        with pytest.raises(openai.BadRequestError) as caught:
            client.files.delete(batch.input_file_id)
        assert caught.value.code == "file_in_use"
        assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
        batch = wait_for_end(client, batch)
        assert batch.status == "cancelled"
        assert client.batches.cancel(batch.id) == batch
        found = results_of(client, batch)
        assert found.keys() == {str(n) for n in range(40)}
        left = entries(client, batch.error_file_id)
        assert {each["error"]["code"] for each in left} == {"batch_cancelled"}
        assert {int(each["custom_id"]) for each in left} == set(range(10, 40))
        assert (batch.request_counts.completed, batch.request_counts.failed) == (10, 30)
        assert eventually(server.is_idle)
        assert client.files.delete(batch.input_file_id).deleted


def test_unfinished_lines_of_an_expired_batch_are_reported(tmp_path):
    with running(data=data_settings(tmp_path, max_batch_requests=2)) as server:
        client = server.client()
        lines = [line("a"), *(line(str(n), chat(ENDLESS)) for n in range(5))]
        batch = wait_for_end(client, start_batch(client, lines, window="2s"))
        assert batch.status == "expired"
        assert batch.expired_at >= batch.expires_at == batch.created_at + 2
        found = results_of(client, batch)
        assert found.keys() == {"a", *"01234"}
        assert found["0"]["error"]["code"] == "batch_expired"
        assert found["0"]["response"] is None
        assert eventually(server.is_idle)


def test_tenants_cannot_see_use_or_fill_up_batches_of_others(tmp_path):
    path, keys = tmp_path / "keys.jsonl", [new_key(name, ("chat",)) for name in ("one", "two")]
    for key, _ in keys:
        add_line(path, key)
    data = data_settings(tmp_path, max_tenant_bytes=100_000)
    with running(keys_file=str(path), data=data) as server:
        one, two = (
            openai.OpenAI(
                base_url=f"{server.url}/v1",
                api_key=secret,
                max_retries=0,
                http_client=http_client(),
            )
            for _, secret in keys
        )
        batch = wait_for_end(one, start_batch(one, [line("a"), line("b", chat(temperature=9))]))
        for ask in (
            lambda: two.batches.retrieve(batch.id),
            lambda: two.batches.cancel(batch.id),
            lambda: two.files.content(batch.output_file_id),
            lambda: two.files.content(batch.error_file_id),
            lambda: two.files.delete(batch.input_file_id),
            lambda: two.batches.create(
                input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"
            ),
        ):
            with pytest.raises(openai.NotFoundError):
                ask()
        assert list(two.batches.list()) == list(two.files.list()) == []
        for _ in range(2):
            one.files.create(file=b"x" * 30_000, purpose="user_data")
        with pytest.raises(openai.BadRequestError) as caught:
            one.files.create(file=b"x" * 30_000, purpose="user_data")
        assert caught.value.code == "storage_full"
        assert two.files.create(file=b"x" * 30_000, purpose="user_data").bytes == 30_000
        with pytest.raises(openai.PermissionDeniedError):
            start_batch(one, [line("a", url="/v1/embeddings")][:0] or b" ", "/v1/embeddings")
        one.close()
        two.close()


def test_lines_over_the_storage_limit_of_a_tenant_fail_and_others_complete(tmp_path):
    data = data_settings(tmp_path, max_tenant_bytes=24_000, max_batch_requests=1)
    with running(data=data) as server:
        client = server.client()
        long = chat(scripted(text="x", tokens=1000))
        batch = wait_for_end(client, start_batch(client, [line(str(n), long) for n in range(20)]))
        assert batch.status == "completed"
        found = results_of(client, batch)
        assert found.keys() == {str(n) for n in range(20)}
        left = entries(client, batch.error_file_id)
        assert {each["error"]["code"] for each in left} == {"storage_full"}
        assert 0 < len(left) < 20


def test_limits_of_batches_are_listed(batch_server, server):
    bounds = {"max_lines": 50_000, "max_line_bytes": 64 * 2**20, "max_file_bytes": 200 * 2**20}
    assert batch_server.get("/v1/capabilities").json()["batches"] == bounds
    assert server.get("/v1/capabilities").json()["batches"] is None


def test_a_server_without_a_data_folder_refuses_batches(server):
    client = server.client()
    with pytest.raises(openai.BadRequestError) as caught:
        client.files.create(file=b"x", purpose="batch")
    assert caught.value.code == "batches_not_kept"
    with pytest.raises(openai.BadRequestError) as caught:
        client.batches.create(input_file_id="x", endpoint=CHAT, completion_window="24h")
    assert caught.value.code == "batches_not_kept"
    assert list(client.batches.list()) == []
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve("batch_x")


def test_interactive_requests_have_priority_over_batch_lines(tmp_path):
    model = mock_pipeline(max_sequences=1)
    with running({"mock": model}, data=data_settings(tmp_path, max_batch_requests=4)) as server:
        client = server.client()
        slow = chat(scripted(text="x", tokens=100, latency_s=0.005))
        batch = start_batch(client, [line(str(n), slow) for n in range(40)])
        count = lambda: client.batches.retrieve(batch.id).request_counts.completed  # noqa: E731
        assert eventually(lambda: count() >= 1)
        for _ in range(5):
            before = count()
            assert server.post(slow).status_code == 200
            assert count() - before <= 1  # a line that ended as the request arrived
        client.batches.cancel(batch.id)
        assert wait_for_end(client, batch).status == "cancelled"


def test_batch_lines_leave_half_of_the_quota_to_interactive_requests(tmp_path):
    with running(data=data_settings(tmp_path, max_batch_requests=8), max_requests=4) as server:
        client = server.client()
        batch = start_batch(client, [line(str(n), chat(ENDLESS)) for n in range(20)])
        stats = server.runner().stats
        assert eventually(lambda: stats().num_running == 2)
        for _ in range(20):
            assert server.post(chat()).status_code == 200
            assert stats().num_running + stats().num_waiting <= 3
        client.batches.cancel(batch.id)
        assert wait_for_end(client, batch).status == "cancelled"


def test_a_line_refused_with_429_is_retried(tmp_path):
    """The runner retries lines that the model refuses because its queue is full."""
    model = mock_pipeline(max_sequences=1, max_waiting=1)
    with running({"mock": model}, data=data_settings(tmp_path, max_batch_requests=8)) as server:
        client = server.client()
        batch = wait_for_end(client, start_batch(client, [line(str(n)) for n in range(8)]))
        assert (batch.status, batch.request_counts.completed) == ("completed", 8)


def test_batch_lines_count_against_the_rate_limits_of_their_owner(tmp_path):
    """A line over its rate limit is retried later; one larger than the limit is refused."""
    limits = LimitsSettings(address=("images=60/minute", "tokens=100000/minute"))
    with running(data=data_settings(tmp_path), limits=limits) as server:
        client = server.client()
        lines = [line(str(n), chat([image_part(image_url())], max_tokens=1)) for n in range(62)]
        never = line("never", chat([image_part(image_url())] * 61))
        batch = wait_for_end(client, start_batch(client, [*lines, never]))
        counts = batch.request_counts
        assert (counts.completed, counts.failed) == (62, 1)
        assert results_of(client, batch)["never"]["response"]["status_code"] in (400, 429)


def test_the_request_timeout_does_not_apply_to_batch_lines(tmp_path):
    with running(data=data_settings(tmp_path), request_timeout_s=0.2) as server:
        client = server.client()
        slow = chat(scripted(text="x", tokens=40, latency_s=0.02))
        assert server.post(slow).status_code == 503
        batch = wait_for_end(client, start_batch(client, [line(str(n), slow) for n in range(3)]))
        assert batch.request_counts.completed == 3


def test_lines_that_keep_being_refused_do_not_delay_other_lines(tmp_path, loader, monkeypatch):
    """Retries of a model that fails to load back off, and other lines go on."""
    monkeypatch.setattr(line_requests, "MAX_PAUSE_S", 0.1)
    loader.set_broken("broken")
    models = {"mock": mock_pipeline(), "broken": loader.spec("broken")}
    with running(models, data=data_settings(tmp_path, max_batch_requests=2)) as server:
        client = server.client()
        lines = [line(f"bad {n}", chat(model="broken")) for n in range(4)]
        lines += [line(str(n)) for n in range(4)]
        batch = start_batch(client, lines)
        assert eventually(lambda: client.batches.retrieve(batch.id).request_counts.completed == 4)
        client.batches.cancel(batch.id)
        batch = wait_for_end(client, batch)
        left = {each["custom_id"] for each in entries(client, batch.error_file_id)}
        assert left == {f"bad {n}" for n in range(4)}


def test_lines_of_a_changed_file_are_reported_and_end_the_batch(tmp_path):
    with running(data=data_settings(tmp_path, max_batch_requests=1)) as server:
        client = server.client()
        slow = chat(scripted(text="x", tokens=200, latency_s=0.01))
        batch = start_batch(client, [line("first", slow), line("second"), line("third")])
        assert eventually(lambda: server.runner().stats().num_running == 1)
        (tmp_path / "data/files" / batch.input_file_id).write_bytes(b"rubbish")
        batch = wait_for_end(client, batch)
        assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 2)
        left = {each["error"]["code"] for each in entries(client, batch.error_file_id)}
        assert left == {"unreadable_line"}


def test_answers_during_a_full_disk_are_stored_later(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(writer, "RETRY_S", 0.1)
    write = Folder.write

    def full(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    with running(data=data_settings(tmp_path)) as server:
        client = server.client()
        slow = chat(scripted(text="x", tokens=10, latency_s=0.01))
        batch = start_batch(client, [line(str(n), slow) for n in range(40)])
        assert eventually(lambda: client.batches.retrieve(batch.id).request_counts.completed > 5)
        monkeypatch.setattr(Folder, "write", full)
        with pytest.raises(openai.InternalServerError) as caught:
            client.files.create(file=b"x", purpose="user_data")
        assert (caught.value.status_code, caught.value.code) == (503, "disk_full")
        assert eventually(
            lambda: (
                "results of batches cannot be written, retrying: the disk is full" in caplog.text
            )
        )
        assert eventually(server.is_idle)  # requests stop when their answers could not be stored
        assert server.post(chat()).status_code == 200
        monkeypatch.setattr(Folder, "write", write)
        batch = wait_for_end(client, batch)
        assert batch.request_counts.completed == 40
        assert results_of(client, batch).keys() == {str(n) for n in range(40)}


def test_lines_of_two_tenants_alternate(tmp_path):
    path, keys = tmp_path / "keys.jsonl", [new_key(name, ("chat",)) for name in ("many", "few")]
    for key, _ in keys:
        add_line(path, key)
    with running(keys_file=str(path), data=data_settings(tmp_path, max_batch_requests=2)) as server:
        many, few = (
            openai.OpenAI(
                base_url=f"{server.url}/v1",
                api_key=secret,
                max_retries=0,
                http_client=http_client(),
            )
            for _, secret in keys
        )
        slow = chat(scripted(text="x", tokens=20, latency_s=0.005))
        first = start_batch(many, [line(str(n), slow) for n in range(100)])
        second = wait_for_end(few, start_batch(few, [line(str(n), slow) for n in range(5)]))
        assert second.request_counts.completed == 5
        assert many.batches.retrieve(first.id).request_counts.completed < 50
        many.batches.cancel(first.id)
        assert wait_for_end(many, first).status == "cancelled"
        many.close()
        few.close()


def test_files_on_disk_are_created_read_and_deleted_like_files_in_memory(batch_server):
    client = batch_server.client()
    content = random.Random(1).randbytes(3_000_000)
    sent = client.files.create(file=("noise", content), purpose="user_data")
    assert client.files.content(sent.id).read() == content
    assert client.files.retrieve(sent.id) == sent
    assert (sent.bytes, sent.expires_at) == (len(content), None)
    assert sent.id in {file.id for file in client.files.list(purpose="user_data")}
    assert client.files.delete(sent.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.content(sent.id)


def test_an_interrupted_upload_leaves_no_file(batch_server, tmp_path):
    folder = batch_server.service.settings.data.folder
    before = Counter(path.name for path in (Path(folder, "files")).iterdir())
    url = f"{batch_server.url}/v1/files"

    def half():
        yield b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
        yield b"x" * 3_000_000
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        batch_server.http.post(
            url, content=half(), headers={"content-type": "multipart/form-data; boundary=x"}
        )
    assert eventually(lambda: Counter(p.name for p in (Path(folder, "files")).iterdir()) == before)
