"""Requests for stored objects: files, batches, responses, and loaded models."""

import json
from collections.abc import Iterator
from dataclasses import replace

from same.answers import script, user
from same.fields import USER
from same.request import Json, Request, get, post

ANTHROPIC = {"anthropic-version": "2023-06-01"}
DONE = ("status", ["completed", "failed", "cancelled", "expired", "incomplete"])
ENDED = ("processing_status", ["ended"])


def requests() -> Iterator[Request]:
    """Yield the requests in the order of their dependencies."""
    yield from _files()
    yield from _named_files()
    yield from _batches()
    yield from _message_batches()
    yield from _responses()
    yield from _orders()


def upload(name: str, form: dict[str, str], **more: Json) -> Request:
    """Return a request that sends a file."""
    return Request(f"/v1/files: {name}", "POST", "/v1/files", form=form, **more)


def _files() -> Iterator[Request]:
    picture = {"file a.png": "<<small.png>>"}
    yield upload("a picture", picture | {"purpose": "vision"}, keep={"file": "id"})
    yield upload("Anthropic's", picture, headers=ANTHROPIC, keep={"theirs": "id"})
    yield upload("a page", {"file a.pdf": "<<page.pdf>>"}, keep={"page": "id"})
    yield upload("a text", {"file a.txt": "some text"}, keep={"text": "id"})
    until = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    yield upload("one that ends", picture | until)
    yield upload("one that ends at once", picture | until | {"expires_after[seconds]": "1"})
    yield upload("an unknown purpose", picture | {"purpose": "fun"})
    yield upload("an unknown field", picture | {"probe": "1"})
    yield upload("no file", {"purpose": "vision"})
    yield upload("an empty file", {"file a.png": ""})
    yield post("no form", "/v1/files", {"file": "x"})
    yield upload("compressed", picture, gzip=True, headers={"content-encoding": "gzip"})
    for query in ("", "?limit=2", "?limit=0", "?order=asc", "?purpose=vision", "?after=none"):
        yield get(f"/v1/files{query}")
        yield get(f"/v1/files{query}", f"Anthropic's /v1/files{query}", headers=ANTHROPIC)
    for name in ("<<file>>", "<<theirs>>", "<<text>>", "file-none"):
        for path in (f"/v1/files/{name}", f"/v1/files/{name}/content"):
            yield get(path)
            yield get(path, method="HEAD")
            yield get(path, f"Anthropic's {path}", headers=ANTHROPIC)


def _named_files() -> Iterator[Request]:
    """Yield images by their ids, and deleted files."""
    base = {"model": "mock", "max_tokens": 90}
    shown = {"type": "image_url", "image_url": {"file_id": "<<file>>"}}
    page = {"type": "file", "file": {"file_id": "<<page>>"}}
    text = {"type": "file", "file": {"file_id": "<<text>>"}}
    for name, part in {"picture": shown, "page": page, "text": text}.items():
        yield post(f"a stored {name}", "/v1/chat/completions", base | {"messages": [user(part)]})
    item = {"type": "input_image", "file_id": "<<file>>"}
    yield post("a stored picture", "/v1/responses", {"model": "mock", "input": [user(item)]})
    block = {"type": "image", "source": {"type": "file", "file_id": "<<file>>"}}
    yield post("a stored picture", "/v1/messages", base | {"messages": [user(block)]})
    for name in ("<<text>>", "<<theirs>>"):
        headers = ANTHROPIC if "theirs" in name else {}
        for again in ("", " again"):
            path = f"/v1/files/{name}"
            yield get(path, f"DELETE {path}{again}", method="DELETE", headers=headers)


def _line(custom_id: str, url: str, body: Json) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


CHAT = {"model": "mock", "messages": [USER], "max_tokens": 5}
FAILING = CHAT | {"messages": [user(script(text="Hi", fail_at_token=0))]}
LINES = {
    "/v1/chat/completions": [CHAT, CHAT | {"n": 2}, CHAT | {"model": "nobody"}, FAILING],
    "/v1/completions": [{"model": "mock", "prompt": "Hello", "probe": 1}],
    "/v1/embeddings": [{"model": "mock", "input": "Hello"}, {"model": "mock"}],
    "/v1/responses": [{"model": "mock", "input": "Hello"}],
}
WRONG = {
    "no json": "{",
    "twice one id": "\n".join([_line("a", "/v1/completions", {})] * 2),
    "another url": _line("a", "/v1/embeddings", {}),
    "a stream": _line("a", "/v1/completions", {"prompt": "a", "stream": True}),
    "no id": json.dumps({"url": "/v1/completions", "body": {}}),
    "nothing": "\n",
}


def _batches() -> Iterator[Request]:
    for path, bodies in LINES.items():
        # One line a batch, because the answers of a batch have no order.
        for number, body in enumerate(bodies):
            text = _line(f"line-{number}", path, body) + "\n"
            yield from _batch(f"{path} {number}", path, text)
    for name, text in WRONG.items():
        yield from _batch(name, "/v1/completions", text)
    odd: dict[str, dict[str, Json]] = {
        "a file that is not there": {"input_file_id": "file-none"},
        "an unknown endpoint": {"endpoint": "/v1/audio"},
        "an unknown window": {"completion_window": "soon"},
        "labels": {"metadata": {"a": "b"}, "input_file_id": "file-none"},
        "wrong labels": {"metadata": {"a": 1}},
        "nothing": {"input_file_id": None},
    }
    base = {"input_file_id": "<<file>>", "endpoint": "/v1/completions", "completion_window": "24h"}
    for name, fields in odd.items():
        yield post(name, "/v1/batches", base | fields)
    yield get("/v1/batches?limit=0")
    yield get("/v1/batches?limit=1")
    yield get("/v1/batches/batch_none")
    yield post("none", "/v1/batches/batch_none/cancel")


def _batch(name: str, path: str, text: str) -> Iterator[Request]:
    """Yield the requests of a batch from its file to its answers."""
    form = {"file a.jsonl": text, "purpose": "batch"}
    yield upload(f"batch of {name}", form, keep={"lines": "id"})
    body = {"input_file_id": "<<lines>>", "endpoint": path, "completion_window": "24h"}
    yield post(f"a batch of {name}", "/v1/batches", body, keep={"batch": "id"})
    kept = {"answers": "output_file_id", "errors": "error_file_id"}
    yield get("/v1/batches/<<batch>>", f"the batch of {name}", until=DONE, keep=kept)
    yield get("/v1/files/<<answers>>/content", f"answers of {name}")
    yield get("/v1/files/<<errors>>/content", f"errors of {name}")
    yield post(f"cancel {name}", "/v1/batches/<<batch>>/cancel")


def _message_batches() -> Iterator[Request]:
    path = "/v1/messages/batches"
    odd: dict[str, list[Json]] = {
        "one": [{"custom_id": "a", "params": CHAT}],
        "one that fails": [{"custom_id": "a", "params": CHAT | {"model": "nobody"}}],
    }
    for name, asked in odd.items():
        yield post(name, path, {"requests": asked}, keep={"messages": "id"})
        yield get(f"{path}/<<messages>>", f"the batch of {name}", until=ENDED)
        yield get(f"{path}/<<messages>>/results", f"results of {name}")
        yield post(f"cancel {name}", f"{path}/<<messages>>/cancel")
        yield get(f"{path}/<<messages>>", f"DELETE {name}", method="DELETE")
    wrong: dict[str, Json] = {
        "none": [],
        "twice one id": [{"custom_id": "a", "params": CHAT}] * 2,
        "a bad id": [{"custom_id": "a b", "params": CHAT}],
        "a stream": [{"custom_id": "a", "params": CHAT | {"stream": True}}],
        "no params": [{"custom_id": "a"}],
    }
    for name, asked in wrong.items():
        yield post(name, path, {"requests": asked})
    for place in ("?limit=0", "?limit=1", "/msgbatch_none", "/msgbatch_none/results"):
        yield get(f"{path}{place}")


def _responses() -> Iterator[Request]:
    path = "/v1/responses"
    base = {"model": "mock", "max_output_tokens": 30}
    yield post("stored", path, base | {"input": "Hello"}, keep={"first": "id"})
    following = base | {"input": "And?", "previous_response_id": "<<first>>"}
    yield post("what follows", path, following, keep={"second": "id", "item": "output.0.id"})
    yield post("what follows, streamed", path, following | {"stream": True})
    reference = [{"type": "item_reference", "id": "<<item>>"}, USER]
    yield post("an item of before", path, base | {"input": reference})
    yield post("how long", f"{path}/input_tokens", {
        "model": "mock", "input": "x", "previous_response_id": "<<second>>"})  # fmt: skip
    for place in ("", "/input_items", "/input_items?order=asc&limit=1", "/input_items?limit=0"):
        yield get(f"{path}/<<second>>{place}")
    for name, fields in {"background": {}, "background, streamed": {"stream": True}}.items():
        body = base | {"input": "Hello", "background": True} | fields
        yield post(name, path, body, keep={"later": "id"})
        if not fields:
            yield get(f"{path}/<<later>>", f"what came of {name}", until=DONE)
            for query in ("", "&starting_after=5", "&starting_after=999", "&starting_after=x"):
                yield get(f"{path}/<<later>>?stream=true{query}")
    slow = base | {"input": script(text="word ", prefill_latency_s=1.5), "background": True}
    yield post("slow", path, slow, keep={"slow": "id"})
    yield post("cancel", f"{path}/<<slow>>/cancel")
    yield get(f"{path}/<<slow>>", "what came of slow", until=DONE)
    for name in ("<<first>>", "resp_none"):
        yield post(f"cancel {name}", f"{path}/{name}/cancel")
        yield get(f"{path}/{name}", f"DELETE {path}/{name}", method="DELETE")
        yield get(f"{path}/{name}", f"GET {path}/{name}, deleted")


def _orders() -> Iterator[Request]:
    """Yield requests that load and unload models."""
    asked: dict[str, Json] = {"the spare": {"model": "spare"}, "nobody": {"model": "nobody"}}
    asked |= {"nothing": {}, "a path": {"model": "/etc"}, "waiting": {"model": "spare", "wait": 1}}
    for order in ("load", "unload", "load", "unload"):
        for name, body in asked.items():
            path = f"/v1/models/{order}" if name != "the spare" else f"/models/{order}"
            yield post(name, path, body)
        yield get("/v1/models/spare")
    yield post("loads at use", "/v1/chat/completions", CHAT | {"model": "spare"})


def unique(asked: Iterator[Request]) -> Iterator[Request]:
    """Yield requests with unique names, by a number."""
    seen: dict[str, int] = {}
    for request in asked:
        number = seen[request.name] = seen.get(request.name, 0) + 1
        name = request.name if number == 1 else f"{request.name} ({number})"
        yield replace(request, name=name)
