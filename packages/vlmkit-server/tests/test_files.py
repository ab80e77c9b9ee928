"""Uploaded files, by both official clients, each in its own format."""

import base64
import datetime as dt

import anthropic
import httpx2
import msgspec
import openai
import pytest
from anthropic_client import client_of
from running_server import image_url, running

from vlmkit_server.settings.server import FilesSettings

IMAGE_CONTENT = base64.b64decode(image_url(9, 7).partition(",")[2])


@pytest.fixture(scope="module")
def files(server):
    return server.client().files


@pytest.fixture(scope="module")
def own(server):
    return client_of(server).beta.files


def send(server, fields=(), file=("x.png", IMAGE_CONTENT, "image/png"), **options):
    """Send a multipart form as it is."""
    return server.http.post(
        f"{server.url}/v1/files", files={"file": file}, data=dict(fields), **options
    )


def test_a_file_can_be_stored_described_read_and_deleted(files):
    sent = files.create(file=("teal.png", IMAGE_CONTENT), purpose="vision")
    assert (sent.object, sent.filename, sent.purpose) == ("file", "teal.png", "vision")
    assert (sent.bytes, sent.status, sent.expires_at) == (len(IMAGE_CONTENT), "processed", None)
    assert files.retrieve(sent.id) == sent
    assert files.content(sent.id).read() == IMAGE_CONTENT
    assert sent in list(files.list())
    assert files.delete(sent.id).deleted
    for look in (files.retrieve, files.content, files.delete):
        with pytest.raises(openai.NotFoundError) as caught:
            look(sent.id)
        assert caught.value.code == "file_not_found"


def test_a_file_expires_after_the_requested_time(files):
    after = {"anchor": "created_at", "seconds": 3600}
    sent = files.create(file=b"x", purpose="user_data", expires_after=after)
    assert sent.expires_at == sent.created_at + 3600
    files.delete(sent.id)


def test_anthropics_client_sees_the_same_files_in_its_own_format(server, files, own):
    sent = own.upload(file=("notes.png", IMAGE_CONTENT, "image/png"))
    assert (sent.type, sent.filename, sent.mime_type) == ("file", "notes.png", "image/png")
    assert (sent.size_bytes, sent.downloadable, sent.expires_at) == (len(IMAGE_CONTENT), True, None)
    assert sent.created_at.tzinfo == dt.UTC
    assert own.retrieve_metadata(sent.id) == sent
    assert own.download(sent.id).read() == IMAGE_CONTENT
    assert files.retrieve(sent.id).bytes == len(IMAGE_CONTENT)  # both clients use the same key
    assert own.delete(sent.id).type == "file_deleted"
    with pytest.raises(anthropic.NotFoundError) as caught:
        own.retrieve_metadata(sent.id)
    assert caught.value.body["error"]["details"]["error_code"] == "file_not_found"
    soon = own.upload(file=("a", b"x"), expires_in_seconds=3600)
    assert soon.expires_at - soon.created_at == dt.timedelta(hours=1)


def test_files_are_listed_in_pages():
    with running() as server:
        files, own = server.client().files, client_of(server).beta.files
        assert list(files.list()) == list(own.list()) == []
        purposes = ["vision", "user_data", "vision", "vision", "assistants"]
        ids = [files.create(file=b"x", purpose=purpose).id for purpose in purposes]
        for limit in (1, 2, 5, 100):
            assert [f.id for f in files.list(limit=limit, order="asc")] == ids
            assert [f.id for f in files.list(limit=limit)] == ids[::-1]
            assert [f.id for f in own.list(limit=limit)] == ids[::-1]
        vision = [ids[n] for n in (0, 2, 3)]
        assert [f.id for f in files.list(purpose="vision", limit=2, order="asc")] == vision
        first = files.list(limit=2, order="asc")
        assert (first.has_more, first.data[-1].id) == (True, ids[1])
        assert not files.list(limit=2, order="asc", after=ids[2]).has_more


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("limit=0", "limit must be"),
        ("limit=x", "limit must be"),
        ("order=up", "order must be"),
        ("after=file-x", "after names no file"),
        ("page=page_x", "page names no file"),
        ("ids[]=file-x", "ids[] is not supported"),
        ("scope_id=x", "scope_id is not supported"),
    ],
)
def test_an_invalid_page_query_is_refused(server, query, problem):
    answer = server.get(f"/v1/files?{query}")
    assert answer.status_code == 400
    assert problem in answer.json()["error"]["message"]


def test_a_file_is_found_only_with_the_same_credentials(server, files):
    sent = files.create(file=b"secret", purpose="user_data")
    other = server.client().with_options(api_key="other").files
    assert sent.id not in [file.id for file in other.list()]
    for look in (other.retrieve, other.content, other.delete):
        with pytest.raises(openai.NotFoundError):
            look(sent.id)
    assert server.get(f"/v1/files/{sent.id}").status_code == 404
    other_client = client_of(server).with_options(api_key="other").beta.files
    with pytest.raises(anthropic.NotFoundError):
        other_client.download(sent.id)
    assert files.content(sent.id).read() == b"secret"


def test_browsers_download_file_contents_and_do_not_render_them(server, files):
    page = ("page.html", b"<script>alert(1)</script>", "text/html")
    sent = files.create(file=page, purpose="user_data")
    answer = files.with_raw_response.content(sent.id)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == "attachment"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_least_recently_used_file_is_evicted():
    for bounds in (FilesSettings(max_stored=2), FilesSettings(max_stored_bytes=20)):
        with running(files=bounds) as server:
            files = server.client().files
            one, two = (files.create(file=b"x" * 10, purpose="vision").id for _ in range(2))
            files.retrieve(one)
            files.list()  # listing does not count as use
            three = files.create(file=b"x" * 10, purpose="vision").id
            assert {file.id for file in files.list()} == {one, three}
            with pytest.raises(openai.NotFoundError):
                files.retrieve(two)


def test_a_file_larger_than_the_whole_store_is_refused():
    with running(files=FilesSettings(max_stored_bytes=20)) as server:
        files = server.client().files
        kept = files.create(file=b"x", purpose="vision")
        with pytest.raises(openai.BadRequestError) as caught:
            files.create(file=b"x" * 21, purpose="vision")
        assert (caught.value.code, caught.value.param) == ("file_too_large", "file")
        assert [file.id for file in files.list()] == [kept.id]


def test_a_strict_server_takes_a_form_of_known_fields():
    with running(unknown_fields="refuse") as server:
        sent = server.http.post(
            f"{server.url}/v1/files",
            files={"file": ("a.txt", b"text")},
            data={"purpose": "user_data"},
        )
        assert sent.status_code == 200


def test_a_server_without_file_storage_refuses_uploads():
    with running(files=FilesSettings(max_stored=0)) as server:
        with pytest.raises(openai.BadRequestError) as caught:
            server.client().files.create(file=b"x", purpose="vision")
        assert caught.value.code == "files_not_kept"
        assert list(server.client().files.list()) == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"purpose": "batch"}, "purpose"),
        ({"purpose": "x" * 600}, "purpose"),
        ({"expires_after[anchor]": "updated_at"}, "expires_after[anchor]"),
        ({"expires_after[seconds]": "60"}, "expires_after[seconds]"),
        ({"expires_after[seconds]": "soon"}, "expires_after[seconds]"),
        ({"expires_in_seconds": "9999999999"}, "expires_in_seconds"),
    ],
)
def test_an_unsupported_field_is_refused_by_name(server, fields, param):
    answer = send(server, fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_fields_without_effect_are_reported(server):
    answer = send(server, {"colour": "red", "purpose": "vision"})
    assert (answer.status_code, answer.headers["x-vlmkit-ignored"]) == (200, "colour")
    strict = {"x-vlmkit-strict": "1"}
    assert send(server, {"colour": "red"}, headers=strict).status_code == 400


def test_an_invalid_form_is_refused(server):
    url = f"{server.url}/v1/files"
    bare = {"content-type": "multipart/form-data"}
    bound = {"content-type": "multipart/form-data; boundary=x"}
    for content, headers, status in [
        (b"{}", {"content-type": "application/json"}, 415),
        (b"--x--", bare, 415),
        (b"", bound, 400),
        (b"--x\r\nno more", bound, 400),
        (b'--x\r\ncontent-disposition: form-data; name="file"\r\n\r\nab', bound, 400),
        (
            b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nvision\r\n--x--',
            bound,
            400,
        ),
        (b"--x\r\n\r\n\r\n" * 1000, bound, 400),
        (b"--x--", {"content-type": f"multipart/form-data; boundary={'x' * 5000}"}, 400),
    ]:
        answer = server.http.post(url, content=content, headers=headers)
        assert answer.status_code == status
        assert answer.json()["error"]["message"]
    assert send(server, file=("x" * 256, b"x")).status_code == 400
    many = {f"field{n}": "x" for n in range(40)}
    assert send(server, many).json()["error"]["code"] == "invalid_form"
    other = {"anthropic-version": "2023-06-01"} | bound
    answer = server.http.post(url, content=b"--x--", headers=other)
    assert answer.json()["type"] == "error"


def test_a_form_over_the_body_limit_is_refused():
    with running(max_body_bytes=2000) as server:
        assert send(server, file=("x", b"x" * 1000)).status_code == 200
        try:
            assert send(server, file=("x", b"x" * 4000)).status_code == 413
        except httpx2.HTTPError:  # the server may close before it reads the whole body
            assert list(server.client().files.list())


def test_limits_of_stored_files_are_listed(server):
    capabilities = server.get("/v1/capabilities").json()
    assert capabilities["files"] == msgspec.to_builtins(FilesSettings())
    assert capabilities["models"][0]["media_loaders"] == ["image", "tiff"]
