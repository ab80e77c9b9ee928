"""The logs of a server: complete for the operator, and without text of clients."""

import base64
import json
import logging
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
from running_server import (
    chat,
    eventually,
    http_client,
    image_part,
    image_url,
    process,
    running,
    scripted,
)

from vlmkit.cli import run
from vlmkit.errors import ConfigError, RequestError
from vlmkit.kit.traces import trace_of
from vlmkit_server.auth.key import new_key
from vlmkit_server.auth.key_file import Revoked, add_line
from vlmkit_server.exchange.service import Service
from vlmkit_server.logs.audit import MAX_REFUSED, AuditLog
from vlmkit_server.logs.format import JsonFormat, TextFormat
from vlmkit_server.logs.line_file import BufferedLineFile, LineFile
from vlmkit_server.logs.throttle import MAX_KINDS, LogThrottle
from vlmkit_server.settings.fleet import FleetSettings
from vlmkit_server.settings.server import ServerSettings

SECRET = "ZxSecretQy"


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def last(path, num=1):
    """Return the last line once there are that many."""
    assert eventually(lambda: path.exists() and len(lines(path)) >= num, timeout_s=60)
    assert len(lines(path)) == num
    return lines(path)[-1]


def bearer(secret):
    return {"authorization": f"Bearer {secret}"}


@pytest.fixture
def key(tmp_path):
    key, secret = new_key("alice", ("chat", "admin"))
    add_line(tmp_path / "keys.jsonl", key)
    return key, secret


# The access log.


def test_an_access_log_line_has_the_outcome_of_its_request(tmp_path, key):
    access = tmp_path / "access.jsonl"
    own, secret = key
    keys_file = str(tmp_path / "keys.jsonl")
    with running(access_log=str(access), keys_file=keys_file) as server:
        parts = [image_part(image_url()), {"type": "text", "text": "what?"}]
        body = chat() | {"messages": [{"role": "user", "content": parts}]}
        answer = server.post(body, headers=bearer(secret) | {"x-request-id": "mine-1"})
        usage = answer.json()["usage"]
        line = last(access)
    assert line["request"] == "mine-1"
    assert (line["key"], line["key_name"]) == (own.id, "alice")
    assert (line["route"], line["method"]) == ("/v1/chat/completions", "POST")
    assert (line["status"], line["end"], line["address"]) == (200, "done", "127.0.0.1")
    assert line["received_bytes"] == len(json.dumps(body))
    assert line["sent_bytes"] == len(answer.content)
    assert line["prompt_tokens"] == usage["prompt_tokens"]
    assert line["completion_tokens"] == usage["completion_tokens"]
    assert line["image_tokens"] == usage["prompt_tokens_details"]["image_tokens"] > 0
    assert (line["images"], line["cached_tokens"], line["finish"]) == (1, 0, ["stop"])
    assert 0 <= line["queue_s"] + line["first_token_s"] <= line["total_s"]
    assert stat.S_IMODE(access.stat().st_mode) == 0o600


def test_streams_refusals_and_disconnects_have_access_log_lines(tmp_path):
    access = tmp_path / "access.jsonl"
    with running(access_log=str(access)) as server:
        for event in server.client().chat.completions.create(
            model="mock", messages=[{"role": "user", "content": "hello"}], stream=True
        ):
            assert event
        line = last(access)
        assert (line["end"], line["finish"]) == ("done", ["stop"])
        server.post(chat(temperature=9))
        line = last(access, 2)
        assert (line["status"], line["error"]) == (400, "invalid_request")
        server.get("/nothing/of/this/kind?q=1")
        line = last(access, 3)
        assert (line["status"], line["route"]) == (404, None)
        server.http.get(f"{server.url}/version", headers={"host": "elsewhere.example.com"})
        assert last(access, 4)["status"] == 421
        endless = scripted(text="x", tokens=3000, latency_s=0.01)
        with server.connect(chat(endless, stream=True)) as leaver:
            assert b"200 OK" in leaver.recv(1000)
        line = last(access, 5)
        assert (line["status"], line["end"]) == (200, "left")
        assert line["prompt_tokens"] > 0


def test_a_server_without_an_access_log_records_no_requests():
    with running() as server:
        body = server.post(chat())
        assert body.status_code == 200
        assert server.service.access_log is None


def test_reopened_logs_continue_in_a_new_file_after_a_rename(tmp_path):
    access, audit = tmp_path / "access.jsonl", tmp_path / "audit.jsonl"
    with running(access_log=str(access), audit_log=str(audit)) as server:
        server.get("/version")
        last(access)
        access.rename(tmp_path / "access.1")
        audit.rename(tmp_path / "audit.1")
        server.get("/readyz")
        assert eventually(lambda: len(lines(tmp_path / "access.1")) == 2)
        server.service.reopen_logs()
        server.get("/version")
        assert last(access)["route"] == "/version"
        server.service.audit.note("something")
        assert last(audit)["event"] == "something"


@pytest.mark.parametrize("setting", ["access_log", "audit_log"])
def test_a_log_that_cannot_be_written_is_reported_at_startup(tmp_path, setting):
    with pytest.raises(ConfigError, match=f"server.{setting}"):
        Service({}, ServerSettings(**{setting: str(tmp_path / "none" / "log")}))


def test_a_full_disk_is_logged_and_does_not_stop_the_server(caplog):
    full = LineFile("/dev/full", "server.access_log")
    full.add(b"{}")
    assert "lines lost" in caplog.text
    full.close()


def test_lines_of_concurrent_threads_are_complete(tmp_path):
    file = BufferedLineFile(str(tmp_path / "log"), "server.access_log")
    threads = [
        threading.Thread(target=lambda n=n: [file.add(b'{"n":%d}' % n) for _ in range(500)])
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file.close()
    file.close()
    found = [line["n"] for line in lines(tmp_path / "log")]
    assert sorted(found) == sorted([0, 1, 2, 3] * 500)


# The audit log.


def test_security_relevant_actions_are_logged_with_their_caller(tmp_path, key):
    audit, keys_file = tmp_path / "audit.jsonl", str(tmp_path / "keys.jsonl")
    own, secret = key
    manage = FleetSettings(manage=True)
    with running(audit_log=str(audit), keys_file=keys_file, fleet=manage) as server:
        sent = server.http.post(
            f"{server.url}/v1/files",
            files={"file": ("a.png", b"\x89PNG", "image/png")},
            data={"purpose": "user_data"},
            headers=bearer(secret),
        )
        url = f"{server.url}/v1/files/{sent.json()['id']}"
        assert server.http.delete(url, headers=bearer(secret)).status_code == 200
        server.http.delete(f"{server.url}/v1/files/{SECRET}", headers=bearer(secret))
        server.post({"model": "mock"}, "/v1/models/unload", headers=bearer(secret))
        server.post(chat(), headers=bearer(secret))
        server.get("/v1/files", headers=bearer(secret))
    entries = lines(audit)
    events = [line for line in entries if line["event"] == "request"]
    assert [(line["method"], line["route"]) for line in events] == [
        ("POST", "/v1/files"),
        ("DELETE", "/v1/files/{file_id}"),
        ("DELETE", "/v1/files/{file_id}"),
        ("POST", "/v1/models/unload"),
    ]
    assert {(line["key"], line["key_name"], line["address"]) for line in events} == {
        (own.id, "alice", "127.0.0.1")
    }
    assert events[1]["about"] == {"file_id": sent.json()["id"]}
    assert SECRET not in audit.read_text()
    assert {"event": "model", "model": "mock", "state": "ready"}.items() <= entries[0].items()
    assert entries[1]["event"] == "started"
    assert entries[1]["version"]
    assert secret not in audit.read_text()
    assert stat.S_IMODE(audit.stat().st_mode) == 0o600


def test_repeated_refusals_are_one_audit_line_with_a_count(tmp_path, key):
    audit, keys_file = tmp_path / "audit.jsonl", str(tmp_path / "keys.jsonl")
    own, secret = key
    with running(audit_log=str(audit), keys_file=keys_file) as server:
        for number in range(20):
            assert server.post(chat(), headers=bearer(f"{SECRET}{number}")).status_code == 401
        embed = {"model": "mock", "input": "x"}
        assert server.post(embed, "/v1/embeddings", headers=bearer(secret)).status_code == 403
        server.service.reopen_logs()
        refused = [line for line in lines(audit) if line["event"] == "refused"]
    assert [(line["status"], line.get("key"), line.get("more")) for line in refused] == [
        (401, None, None),
        (403, own.id, None),
        (401, None, 19),
    ]
    assert SECRET not in audit.read_text()


def test_the_number_of_addresses_in_the_audit_log_is_limited(tmp_path):
    audit = AuditLog(str(tmp_path / "audit.jsonl"))
    for number in range(3 * MAX_REFUSED):
        audit.refuse(f"10.0.{number // 256}.{number % 256}", 401, None)
    audit.close()
    entries = lines(tmp_path / "audit.jsonl")
    assert len(entries) == MAX_REFUSED + 2
    assert entries[-1]["address"] == "others"
    assert sum(1 + line.get("more", 0) for line in entries) == 3 * MAX_REFUSED + 1


# The server's own log.


class RecordingHandler(logging.Handler):
    def __init__(self):
        super().__init__()
        self.said = []

    def emit(self, record):
        self.said.append(record.getMessage())


def logger_with_floods(every_s=3600.0):
    handler = RecordingHandler()
    floods = LogThrottle(handler, every_s)
    handler.addFilter(floods)
    logger = logging.Logger("vlmkit.test")  # noqa: LOG001 - of this test alone
    logger.addHandler(handler)
    return logger, handler, floods


def test_repeated_messages_are_throttled_to_one_line_and_a_count():
    logger, handler, floods = logger_with_floods()
    for number in range(1000):
        logger.warning("request %d is nonsense", number)
        logger.info("request %d is fine", number)
    logger.error("another kind")
    warned = [text for text in handler.said if "fine" not in text]
    assert warned == ["request 0 is nonsense", "another kind"]
    assert len(handler.said) == 1002
    floods.flush()
    assert handler.said[-1] == "999 more within 3600 s, like: request 0 is nonsense"
    logger.warning("request %d is nonsense", 5)
    assert handler.said[-1] == "request 5 is nonsense"
    floods.flush()


@pytest.mark.parametrize(
    ("message", "values"), [("%s: %s", ("the disk is full", 3)), ("%r\nof it", (1,)), ("100%", ())]
)
@pytest.mark.parametrize("name", ["vlmkit.test", "vlmkit"])
def test_the_throttle_summary_shows_the_first_message_with_its_values(name, message, values):
    logger, handler, floods = logger_with_floods()
    logger.name = name
    for _ in range(3):
        logger.error(message, *values)
    floods.flush()
    assert handler.said[-1] == f"2 more within 3600 s, like: {handler.said[0].splitlines()[0]}"


def test_messages_about_models_are_not_throttled():
    logger, handler, _ = logger_with_floods()
    logger.name = "vlmkit_server.fleet.fleet"
    for number in range(5):
        logger.error("model %r failed, restarting it in %g s", "one", number)
    assert len(handler.said) == 5


def test_throttled_counts_are_logged_at_the_end_of_the_period():
    logger, handler, _ = logger_with_floods(0.05)
    for _ in range(5):
        logger.warning("nonsense")
    assert eventually(lambda: handler.said[-1].startswith("4 more"), timeout_s=60)


def test_too_many_kinds_of_messages_are_throttled_as_one_kind():
    logger, handler, floods = logger_with_floods()
    for number in range(3 * MAX_KINDS):
        logger.warning(f"kind {number}")  # noqa: G004 - as a library might
    assert len(handler.said) == MAX_KINDS + 1
    floods.flush()
    assert handler.said[-1].startswith(f"{2 * MAX_KINDS - 1} more")


def raised_by(work):
    try:
        work()
    except Exception as error:  # noqa: BLE001 - whatever it is
        return error


def test_a_traceback_in_the_log_has_locations_but_no_client_text():
    def fail():
        try:
            int(SECRET)
        except ValueError as error:
            raise RequestError("a number was expected") from error

    trace = trace_of(raised_by(fail))
    assert SECRET not in trace
    assert "builtins.ValueError" in trace
    assert "a number was expected" in trace
    assert "test_logs.py" in trace


def test_json_log_lines_have_the_fields_of_text_lines_and_the_request_id(capsys):
    record = logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, "it\nfailed %d", (3,), None)
    record.request_id = "req-1"
    error = raised_by(lambda: int(SECRET))
    record.exc_info = (type(error), error, error.__traceback__)
    line = json.loads(JsonFormat().format(record))
    assert "\n" not in JsonFormat().format(record)
    assert line["message"] == "it\nfailed 3"
    assert (line["level"], line["logger"], line["request"]) == ("error", "uvicorn.error", "req-1")
    assert line["error"] == "ValueError"
    assert SECRET not in json.dumps(line) + TextFormat().format(record)
    assert SECRET in TextFormat(tells_all=True).format(record)
    for name in ("vlmkit.running.engine_loop.loop", "vlmkit_torch.devices.faults", "litestar"):
        record.name, record.exc_text = name, None
        assert SECRET not in JsonFormat().format(record) + TextFormat().format(record)


WORKER = f"""
import logging, warnings
from vlmkit.kit.traces import log_of_worker

log_of_worker()
secret = "{SECRET[::-1]}"[::-1]
logging.getLogger("transformers").error(secret)
warnings.warn(secret)
try:
    raise ValueError(secret)
except ValueError:
    logging.getLogger("vlmkit.running").exception("it failed")
"""


def test_the_log_of_a_worker_process_has_no_error_or_library_text():
    ended = subprocess.run(
        [sys.executable, "-c", WORKER], capture_output=True, check=True, text=True
    )
    assert SECRET not in ended.stderr
    assert "it failed" in ended.stderr
    assert "builtins.ValueError" in ended.stderr


def test_an_error_of_a_thread_is_logged_without_its_text(tmp_path):
    (tmp_path / "odd.py").write_text(ODD)
    with run_server(tmp_path, "--set", f'plugins.files=["{tmp_path / "odd.py"}"]') as server:
        assert eventually(lambda: "'odd' failed" in server.log.read_text(), timeout_s=60)
        assert eventually(lambda: server.status() == 200, timeout_s=60)
        log = server.log.read_text()
    assert SECRET not in log
    assert "builtins.ValueError" in log


ODD = f"""
import threading
import time
import warnings

from vlmkit.plugins.hookspecs import hookimpl

VLMKIT_API = (1, 0)


@hookimpl
def vlmkit_register_observers(registry):
    registry.add("odd", lambda context: None)


def fail():
    while threading.excepthook is threading.__excepthook__:
        time.sleep(0.01)
    secret = "{SECRET[::-1]}"[::-1]
    warnings.warn(secret)
    raise ValueError(secret)


threading.Thread(target=fail, name="odd", daemon=True).start()
"""


# A server process that receives secrets in every field.


@contextmanager
def run_server(folder, *options):
    command = [sys.executable, "-m", "vlmkit", "serve", "mock", "--port", "0", *options]
    with process(command, folder) as server:
        yield server


LOUD = """
import logging
import os

import vlmkit
from vlmkit_server.interfaces.monitor import Monitor

VLMKIT_API = (1, 0)

class Loud(Monitor):
    def observer(self, model):
        logging.getLogger(__name__).info("all is well")
        logging.getLogger(__name__).warning("the disk is nearly full")
        logging.getLogger("stranger").error("a stranger speaks")

@vlmkit.hookimpl
def vlmkit_register_monitors(registry):
    registry.add("loud", lambda context: Loud())
"""


def test_warnings_of_installed_plugins_are_logged(tmp_path, monkeypatch):
    info = tmp_path / "site" / "vlmkit_loud-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vlmkit-loud\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[vlmkit]\nloud = vlmkit_loud\n")
    (tmp_path / "site/vlmkit_loud.py").write_text(LOUD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=os.pathsep)
    with run_server(tmp_path, "--set", 'monitors.use=["loud"]') as server:
        assert eventually(lambda: "WARNING the disk is nearly full" in server.log.read_text())
        assert "all is well" not in server.log.read_text()
        assert "stranger" not in server.log.read_text()


def secret_requests(url, key):
    """Send requests with secrets in every field."""
    image = base64.b64encode(SECRET.encode() * 40).decode()
    head = bearer(key) | {"content-type": "application/json", f"x-{SECRET}": SECRET}
    bodies = [
        chat(SECRET),
        chat(SECRET, stream=True),
        chat(SECRET, temperature=SECRET),
        chat(SECRET, **{SECRET: SECRET}),
        chat(SECRET, user=SECRET, metadata={SECRET: SECRET}, stop=[SECRET]),
        chat(SECRET, tools=[{"type": "function", "function": {"name": SECRET}}]),
        chat(SECRET, response_format={"type": SECRET}, guided_regex=f"({SECRET}"),
        chat(SECRET, model=SECRET),
        chat([image_part(f"data:image/png;base64,{image}")]),
        chat([image_part(f"https://example.com/{SECRET}?{SECRET}")]),
        chat([image_part(image_url()), {"type": "text", "text": SECRET}]),
        chat([{"type": "file", "file": {"file_data": image, "filename": SECRET}}]),
        chat(json.dumps({"mock": {"text": SECRET, "fail_at_token": 1}})),
        chat(json.dumps({"mock": {"text": SECRET, SECRET: 1}})),
    ]
    paths = ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"]
    paths += ["/v1/embeddings", "/tokenize", "/v1/chat/completions/render"]
    for path in paths:
        for body in bodies:
            yield "POST", f"{url}{path}", json.dumps(body).encode(), head
    yield "POST", f"{url}/v1/chat/completions", f'{{"{SECRET}": '.encode(), head
    yield "POST", f"{url}/v1/completions?{SECRET}={SECRET}", b'{"prompt": "x"}', head
    yield "GET", f"{url}/{SECRET}/{SECRET}?{SECRET}={SECRET}", b"", head
    yield "GET", f"{url}/v1/files/{SECRET}", b"", head
    yield "DELETE", f"{url}/v1/responses/{SECRET}", b"", head
    yield "POST", f"{url}/v1/files", SECRET.encode(), head | {"content-type": f"x/{SECRET}"}
    yield "GET", f"{url}/v1/models", b"", bearer(SECRET)
    yield SECRET.upper(), f"{url}/v1/models", b"", head


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_secrets_in_any_field_of_a_request_are_in_no_log(tmp_path, key, log_format):
    _, secret = key
    options = ["--log-format", log_format]
    for setting in ("keys_file=keys.jsonl", "access_log=access.jsonl", "audit_log=audit.jsonl"):
        options += ["--set", f"server.{setting}"]
    command = [sys.executable, "-m", "vlmkit", "serve", "mock", "--port", "0", *options]
    log = tmp_path / "log"
    with log.open("wb") as file:
        started = subprocess.Popen(command, cwd=tmp_path, stderr=file)
    try:
        assert eventually(lambda: "listening on" in log.read_text(), timeout_s=120)
        port = int(re.search(r"listening on http://127.0.0.1:(\d+)", log.read_text())[1])
        url = f"http://127.0.0.1:{port}"
        with http_client() as http:
            assert eventually(
                lambda: http.get(f"{url}/readyz", headers=bearer(secret)).status_code == 200
            )
            num = 0
            for method, where, content, headers in secret_requests(url, secret):
                answer = http.request(method, where, content=content, headers=headers)
                assert answer.status_code != 500 or b"fail_at_token" in content
                num += 1
            for raw in (f"GET {SECRET}\r\n\r\n", f"{SECRET} {SECRET}\r\n{SECRET}\r\n\r\n"):
                with socket.create_connection(("127.0.0.1", port)) as connection:
                    connection.sendall(raw.encode())
                    connection.recv(1000)
        started.terminate()
        assert started.wait(60) == 0
    finally:
        started.kill()
        started.wait()
    names = ("log", "access.jsonl", "audit.jsonl")
    written = {name: (tmp_path / name).read_text() for name in names}
    for name, text in written.items():
        for said in (SECRET, SECRET.upper(), SECRET.lower(), secret, "data:image"):
            assert said not in text, name
        assert base64.b64encode(SECRET.encode()).decode()[:8] not in text
    assert len(lines(tmp_path / "access.jsonl")) >= num
    events = [line["event"] for line in lines(tmp_path / "audit.jsonl")]
    assert events[0] == "started"
    assert {"draining", "ended", "refused", "request"} < set(events)
    if log_format == "json":
        assert {line["level"] for line in lines(log)} <= {"info", "warning", "error"}
        assert all(line["time"].endswith("Z") for line in lines(log))


def test_the_text_of_an_unexpected_error_is_logged_at_debug_level_only(caplog, monkeypatch):
    def fail(*_, **__):
        raise ValueError(SECRET)

    monkeypatch.setattr("vlmkit_server.apis.openai_chat.route.conversation_of", fail)
    with running() as server:
        for level, is_told in ((logging.INFO, False), (logging.DEBUG, True)):
            caplog.clear()
            with caplog.at_level(level, "vlmkit_server"):
                assert server.post(chat()).status_code == 500
            assert "builtins.ValueError" in caplog.text
            assert (SECRET in caplog.text) == is_told


def test_sighup_reloads_keys_and_logs_the_changes(tmp_path, key):
    own, _ = key
    path = tmp_path / "keys.jsonl"
    settings = ["--set", "server.keys_file=keys.jsonl", "--set", "server.audit_log=audit.jsonl"]
    with run_server(tmp_path, *settings) as server:
        second, _ = new_key("bob", ("chat",))
        add_line(path, second)
        add_line(path, Revoked(own.id, 0))
        (tmp_path / "audit.jsonl").rename(tmp_path / "audit.1")
        server.process.send_signal(signal.SIGHUP)
        audit = tmp_path / "audit.jsonl"
        assert eventually(lambda: audit.exists() and "keys_read" in audit.read_text())
        [line] = [each for each in lines(audit) if each["event"] == "keys_read"]
        assert (line["added"], line["revoked"]) == ([second.id], [own.id])


def test_hundreds_of_invalid_requests_are_two_log_lines(tmp_path):
    with run_server(tmp_path) as server:
        port = int(server.url.rpartition(":")[2])
        for _ in range(200):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(b"no HTTP at all\r\n\r\n")
                connection.recv(1000)
        server.process.terminate()
        assert server.process.wait(60) == 0
        log = server.log.read_text()
    assert log.count("Invalid HTTP request") == 2
    assert "199 more within 10 s" in log


def test_a_stopped_server_restores_the_logging_of_its_process():
    def handlers():
        return [(each, each.formatter, *each.filters) for each in logging.getLogger().handlers]

    before = handlers()
    assert before
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert run(["serve", "mock", "--port", str(taken.getsockname()[1])])
    assert handlers() == before
