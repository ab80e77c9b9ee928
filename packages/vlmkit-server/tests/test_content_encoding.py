"""Compressed bodies: gzip within the body limit, and nothing else."""

import gzip
import json
import zlib

import pytest
from running_server import chat, eventually, running

GZIP = {"content-encoding": "gzip"}


@pytest.mark.parametrize("name", ["gzip", "GZIP", "x-gzip"])
def test_a_compressed_body_is_answered(server, name):
    body = gzip.compress(json.dumps(chat()).encode())
    answer = server.post(body, headers={"content-encoding": name})
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"] == server.post(chat()).json()["choices"]


def test_content_encoding_identity_is_accepted(server):
    assert server.post(chat(), headers={"content-encoding": "identity"}).status_code == 200


@pytest.mark.parametrize("name", ["deflate", "br", "zstd", "gzip, gzip"])
def test_an_unsupported_encoding_is_refused_with_the_supported_ones(server, name):
    answer = server.post(zlib.compress(b"{}"), headers={"content-encoding": name})
    assert answer.status_code == 415
    assert answer.headers["accept-encoding"] == "gzip, identity"


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        gzip.compress(b"{}", mtime=0)[:-1],
        gzip.compress(b"{}", mtime=0) + b"x",
        gzip.compress(b"{}", mtime=0) + gzip.compress(b"{}", mtime=0),
        b"",
    ],
)
def test_a_body_that_is_not_gzip_is_refused(server, body):
    answer = server.post(body, headers=GZIP)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_body")


def test_a_body_over_the_limit_is_not_decompressed_further():
    with running(max_body_bytes=2**20) as small:
        bomb = gzip.compress(b" " * 2**28)
        assert len(bomb) < 2**20
        answer = small.post(bomb, headers=GZIP)
        assert answer.status_code == 413
        assert eventually(small.is_idle)
        assert small.service.admission.limits.body_bytes.num_held == 0
        fits = gzip.compress(json.dumps(chat()).encode().ljust(2**20))
        assert small.post(fits, headers=GZIP).status_code == 200


def test_a_compressed_upload_is_refused(server):
    answer = server.http.post(
        f"{server.url}/v1/files",
        files={"file": ("a.png", b"x")},
        data={"purpose": "vision"},
        headers=GZIP,
    )
    assert answer.status_code == 415
