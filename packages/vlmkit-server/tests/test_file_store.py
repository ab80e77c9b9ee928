"""The file store under random operations, and the parser of uploads on random bytes."""

import contextlib

import pytest
from hypothesis import given, strategies as st
from litestar.datastructures import Headers

from vlmkit.errors import RequestError
from vlmkit_server.apis.files.form import boundary_of, sent_file
from vlmkit_server.http.errors import NotStored, Overloaded
from vlmkit_server.settings.server import FilesSettings
from vlmkit_server.storage.memory_store import FileStore

SETTINGS = FilesSettings(max_stored=4, max_stored_bytes=100)
OWNERS = (b"one", b"two")
uses = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(OWNERS), st.integers(0, 60), st.integers(0, 9)),
        st.tuples(st.sampled_from(["find", "delete"]), st.sampled_from(OWNERS), st.integers(0, 9)),
        st.tuples(st.just("wait"), st.integers(0, 5)),
    ),
    max_size=40,
)


def add(store, owner, num_bytes, lives_s=None):
    return store.add(
        owner,
        bytes(num_bytes),
        filename="x",
        purpose="vision",
        media_type="image/png",
        lives_s=lives_s,
    )


@given(uses)
def test_any_sequence_of_uses_keeps_limits_and_owners_of_files(given_uses):
    now = 0.0
    store = FileStore(SETTINGS, lambda: now)
    sent = []
    for use, *what in given_uses:
        if use == "wait":
            now += what[0]
        elif use == "add":
            owner, num_bytes, lives_s = what
            sent.append(add(store, owner, num_bytes, lives_s or None))
        elif sent:
            owner, which = what
            file = sent[which % len(sent)]
            try:
                assert getattr(store, use)(file.id, owner) in (file, None)
                assert file.owner == owner
            except NotStored:
                assert file.owner != owner or file not in store.all_of(owner)
        kept = [file for owner in OWNERS for file in store.all_of(owner)]
        assert len(kept) <= SETTINGS.max_stored
        assert sum(len(file.content) for file in kept) <= SETTINGS.max_stored_bytes
        assert all(file.expires_at is None or file.expires_at > now for file in kept)
        assert all(file.owner == owner for owner in OWNERS for file in store.all_of(owner))


def test_an_expired_file_is_evicted_before_any_other():
    now = 0.0
    store = FileStore(FilesSettings(max_stored=2), lambda: now)
    old, late = add(store, b"one", 1), add(store, b"one", 1, lives_s=5)
    now = 5.0
    new = add(store, b"one", 1)
    assert store.all_of(b"one") == [old, new]
    with pytest.raises(NotStored):
        store.find(late.id, b"one")


PIECES = [
    *(b"--x", b"--x--", b"\r\n", b"\n", b": ", b";", b'"', b"=", b"\xff", b"\0", b"abc"),
    *(b"content-disposition: form-data; name=", b'"file"', b"; filename=", b"purpose"),
    *(b"content-type: ", b"text/plain; charset=", b"utf-16", b"none", b"multipart/form-data"),
]


@given(st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join))
def test_any_multipart_body_is_parsed_or_refused(content):
    for body in (content, b"--x\r\n" + content + b"\r\n--x--"):
        with contextlib.suppress(RequestError):
            assert sent_file(body, "x")[0].filename


@given(st.lists(st.sampled_from([*PIECES, b"boundary", b"*0", b"*"]), max_size=12).map(b"".join))
def test_any_content_type_header_is_parsed_or_refused(value):
    with contextlib.suppress(RequestError):
        assert boundary_of(Headers({"content-type": value.decode("latin-1")}))


def test_files_of_the_tenant_with_most_are_evicted():
    store = FileStore(FilesSettings(max_stored=100, max_stored_bytes=100))

    def add_file(account, num_bytes):
        return store.add(
            account.encode(),
            bytes(num_bytes),
            filename="x",
            purpose="vision",
            media_type="image/png",
            lives_s=None,
            account=account,
        ).id

    mine = [add_file("me", 10) for _ in range(3)]
    for _ in range(50):
        theirs = add_file("them", 20)
    assert [file.id for file in store.all_of(b"me")] == mine
    assert len(store.all_of(b"them")) == 3
    with pytest.raises(Overloaded, match="beside those that others keep"):
        add_file("them", 80)
    add_file("me", 15)
    assert [file.id for file in store.all_of(b"me")][:3] == mine
    assert store.find(theirs, b"them")
