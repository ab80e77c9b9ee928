"""``vlmkit batch`` answers each line of a file once, in order, whatever ends it."""

import json
import resource
import signal
import subprocess
import sys
import time

import pytest
from PIL import Image

MESSAGE = {"role": "user", "content": "hello"}
COMMAND = [sys.executable, "-m", "vlmkit", "batch", "mock"]


def line(custom_id, content="hello", **fields):
    body = {"model": "mock", "messages": [{"role": "user", "content": content}]}
    entry = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(entry | fields)


def answering(custom_id, text, **script):
    return line(custom_id, json.dumps({"mock": {"text": text, **script}}))


@pytest.fixture
def files(tmp_path):
    return tmp_path / "in.jsonl", tmp_path / "out.jsonl"


def run(files, *args, **options):
    command = [*COMMAND, *map(str, files), *args]
    return subprocess.run(  # noqa: PLW1510 - tests check the exit code
        command, capture_output=True, text=True, timeout=300, **options
    )


def started(files, num_answers=1):
    """Start the command; return its process once it has written so many answers."""
    running = subprocess.Popen([*COMMAND, *map(str, files)], stderr=subprocess.PIPE)
    while not files[1].exists() or files[1].read_bytes().count(b"\n") < num_answers:
        if running.poll() is not None:
            raise AssertionError(running.stderr.read())
        time.sleep(0.01)
    return running


def answers(file):
    return [json.loads(each) for each in file.read_text().splitlines()]


def text_of(entry):
    return entry["response"]["body"]["choices"][0]["message"]["content"]


def test_each_line_is_answered_in_order(files):
    delays = [0.3, 0.0, 0.1, 0.0, 0.0, 0.2]
    lines = [answering(f"r{n}", f"text {n}", latency_s=d) for n, d in enumerate(delays)]
    files[0].write_text("\n".join(lines))
    found = run(files)
    assert found.returncode == 0, found.stderr
    assert [each["custom_id"] for each in answers(files[1])] == [f"r{n}" for n in range(6)]
    assert [text_of(each) for each in answers(files[1])] == [f"text {n}" for n in range(6)]
    assert "6 of 6 lines answered" in found.stderr


def test_bad_lines_are_reported_and_counted_and_do_not_stop_others(files):
    lines = [
        answering("good", "a"),
        "{ no JSON",
        "",
        line("good"),
        line("elsewhere", url="/v1/files"),
        line("no body", body=None),
        line("unknown", body={"model": "another", "messages": [MESSAGE]}),
        answering("last", "b"),
    ]
    files[0].write_text("\n".join(lines))
    found = run(files)
    assert found.returncode == 0
    entries = answers(files[1])
    codes = [each["error"] and each["error"]["code"] for each in entries]
    assert codes == [
        *(None, "invalid_json_line", "duplicate_custom_id", "invalid_url", None, None, None),
    ]
    assert [each["custom_id"] for each in entries] == [
        *("good", "line-2", "good", "elsewhere", "no body", "unknown", "last"),
    ]
    statuses = [each["response"]["status_code"] for each in entries if each["response"]]
    assert statuses == [200, 400, 404, 200]
    for code in ("invalid_json_line", "duplicate_custom_id", "invalid_url", "http_404"):
        assert f"1 {code}" in found.stderr


def test_a_line_that_is_too_long_is_an_error_of_that_line(files):
    files[0].write_text("\n".join([line("long", "x" * 200_000), answering("next", "a")]))
    found = run(files, "--set", "server.max_body_bytes=100000")
    assert found.returncode == 0, found.stderr
    first, second = answers(files[1])
    assert first["error"]["code"] == "line_too_long"
    assert text_of(second) == "a"


def image(url):
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "hello"}]
    return line(url, parts)


def test_a_relative_path_names_an_image_of_the_folder(files, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    Image.new("RGB", (8, 8), "red").save(folder / "red.png")
    Image.new("RGB", (8, 8), "red").save(tmp_path / "outside.png")
    (folder / "link.png").symlink_to(tmp_path / "outside.png")
    urls = ["red.png", "../outside.png", "link.png", str(tmp_path / "outside.png"), "none.png"]
    files[0].write_text("\n".join(map(image, urls)))
    assert run(files, "--images", str(folder)).returncode == 0
    entries = answers(files[1])
    assert entries[0]["response"]["status_code"] == 200
    assert [each["error"]["code"] for each in entries[1:]] == [
        *["image_outside_folder"] * 3,
        "image_not_found",
    ]


@pytest.mark.posix
@pytest.mark.parametrize(
    ("num_lines", "num_kills"), [(200, 1), pytest.param(10_000, 10, marks=pytest.mark.slow)]
)
def test_a_run_that_is_killed_goes_on_and_nothing_is_lost_or_answered_twice(
    files, num_lines, num_kills
):
    lines = [answering(f"r{n}", f"text {n}", latency_s=0.002) for n in range(num_lines)]
    files[0].write_text("\n".join(lines))
    for kill in range(1, num_kills + 1):
        running = started(files, num_lines * kill // (num_kills + 1))
        running.kill()
        running.communicate()
    with files[1].open("ab") as output:
        output.write(b'{"id":"batch_req_cut')  # as a kill within a write leaves it
    found = run(files)
    assert found.returncode == 0, found.stderr
    assert [each["custom_id"] for each in answers(files[1])] == [f"r{n}" for n in range(num_lines)]
    assert [text_of(each) for each in answers(files[1])] == [f"text {n}" for n in range(num_lines)]
    assert "by an earlier run" in found.stderr


@pytest.mark.posix
def test_an_interrupt_keeps_what_is_answered(files):
    lines = [answering(f"r{n}", "text", latency_s=0.05) for n in range(500)]
    files[0].write_text("\n".join(lines))
    running = started(files)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    assert running.returncode == 130
    kept = [each["custom_id"] for each in answers(files[1])]
    assert 0 < len(kept) < 500
    assert kept == [f"r{n}" for n in range(len(kept))]


@pytest.mark.posix
def test_a_full_disk_is_an_error_and_the_next_run_goes_on(files):
    files[0].write_text("\n".join(answering(f"r{n}", "text") for n in range(50)))

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, resource.RLIM_INFINITY))

    found = run(files, preexec_fn=limit)
    assert found.returncode == 1
    assert "cannot be written" in found.stderr
    assert run(files).returncode == 0
    assert [each["custom_id"] for each in answers(files[1])] == [f"r{n}" for n in range(50)]


def test_an_output_of_another_input_is_refused_and_kept(files):
    files[0].write_text(answering("mine", "a"))
    before = json.dumps({"id": "1", "custom_id": "other", "response": None, "error": None}) + "\n"
    files[1].write_text(before)
    found = run(files)
    assert found.returncode == 1
    assert "no answer to this input" in found.stderr
    assert files[1].read_text() == before


@pytest.mark.parametrize("content", ["a note without a line feed", line("mine")])
def test_an_output_that_has_no_answers_is_refused_and_kept(files, content):
    files[0].write_text(line("mine"))
    files[1].write_text(content)
    found = run(files)
    assert found.returncode == 1
    assert "is no answer" in found.stderr
    assert files[1].read_text() == content


def test_an_input_that_is_the_output_is_refused_and_kept(files):
    content = line("first") + "\n" + line("second")
    files[0].write_text(content)
    assert "is no answer" in run((files[0], files[0])).stderr
    assert files[0].read_text() == content


def test_a_failed_engine_ends_the_run_and_leaves_its_lines_to_the_next_one(files):
    lines = [answering(f"r{n}", "text", latency_s=0.01) for n in range(200)]
    lines[100] = answering("r100", "text", crash_at_token=0)
    files[0].write_text("\n".join(lines))
    found = run(files)
    assert found.returncode == 3
    assert "engine" in found.stderr
    kept = answers(files[1])
    assert len(kept) <= 100
    assert all(each["response"]["status_code"] == 200 for each in kept)
    lines[100] = answering("r100", "text")
    files[0].write_text("\n".join(lines))
    assert run(files).returncode == 0
    entries = answers(files[1])
    assert [each["custom_id"] for each in entries] == [f"r{n}" for n in range(200)]
    assert {each["response"]["status_code"] for each in entries} == {200}


@pytest.mark.posix
def test_two_runs_do_not_write_to_one_file(files):
    files[0].write_text("\n".join(answering(f"r{n}", "a", latency_s=1.0) for n in range(2000)))
    running = started(files)
    try:
        found = run(files)
        assert found.returncode == 1
        assert "another run writes" in found.stderr
    finally:
        running.kill()
        running.communicate()


def test_a_file_that_does_not_exist_and_a_device_are_errors(files, tmp_path):
    assert "cannot be read" in run(files).stderr
    files[0].write_text(line("a"))
    assert "is no regular file" in run((files[0], "/dev/full")).stderr
