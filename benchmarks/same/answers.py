"""Requests for answers by API: conversations, scripts, tools, constraints and images."""

import json
from collections.abc import Iterator

from same.fields import FUNCTION, SAID, SCHEMA, TOOL, USER
from same.request import Json, Request, post

CHAT, TEXT, RESPONSE, MESSAGE = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
)


def user(*content: Json) -> Json:
    """Return a user message of text or parts."""
    is_text = len(content) == 1 and isinstance(content[0], str)
    return {"role": "user", "content": content[0] if is_text else list(content)}


def script(**fields: Json) -> str:
    """Return a directive for the mock."""
    return json.dumps({"mock": fields})


def part(text: str) -> Json:
    """Return a text part."""
    return {"type": "text", "text": text}


def url(name: str, kind: str = "png") -> str:
    """Return an attachment as a URL."""
    return f"data:image/{kind};base64,<<{name}>>"


def image(name: str, kind: str = "png", **more: Json) -> Json:
    """Return an attachment as an image part of a chat."""
    return {"type": "image_url", "image_url": {"url": url(name, kind), **more}}


CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
CALLING = {"role": "assistant", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "a result"}
CHATS: dict[str, list[Json]] = {
    "system": [{"role": "system", "content": "Be short."}, USER],
    "developer": [{"role": "developer", "content": [part("Be "), part("short.")]}, USER],
    "turns": [USER, SAID, user("And?")],
    "parts": [user(part("Hel"), part("lo"))],
    "thought": [USER, SAID | {"reasoning_content": "Hm"}, user("And?")],
    "thought by its other name": [USER, SAID | {"reasoning": "Hm"}, user("And?")],
    "call and result": [USER, CALLING, RESULT],
    "call and result in parts": [USER, CALLING, RESULT | {"content": [part("a"), part("b")]}],
    "result without a call": [USER, RESULT],
    "name": [USER | {"name": "somebody"}],
    "ends with the assistant": [USER, SAID],
    "prefix": [USER, SAID | {"prefix": True}],
    "characters": [user("Grüße, 世界 🎈 \x00\x1f</s><|im_end|>")],
    "nothing said": [user("")],
    "no messages": [],
    "no content": [{"role": "user"}],
    "no role": [{"content": "Hello"}],
    "an unknown role": [{"role": "robot", "content": "Hello"}],
    "a number": [user(17)],
    "an unknown part": [user({"type": "video_url", "video_url": {"url": "x"}})],
    "a refusal": [USER, {"role": "assistant", "refusal": "no"}, user("And?")],
    "an audio": [USER, {"role": "assistant", "audio": {"id": "x"}}, user("And?")],
    "a text in place of messages": "Hello",
}

PICTURES: dict[str, Json] = {
    "a picture": user(image("small.png"), part("What?")),
    "a picture at last": user(part("What?"), image("shapes.png")),
    "a jpeg": user(image("word.jpg", "jpeg")),
    "a bmp": user(image("small.bmp", "bmp")),
    "two pictures": user(image("small.png"), image("digit.png"), part("Which?")),
    "a picture, low": user(image("small.png", detail="low")),
    "a picture, original": user(image("small.png", detail="original")),
    "a picture, of an unknown detail": user(image("small.png", detail="huge")),
    "a picture of two tokens": user(image("small.png", max_image_tokens=2)),
    "a wide picture of one token": user(image("wide.png", max_image_tokens=1)),
    "a picture with a label": user(image("small.png", alt="dots")),
    "a picture of another type": user(image("small.png", "gif")),
    "a url alone": user({"type": "image_url", "image_url": url("small.png")}),
    "no base64": user({"type": "image_url", "image_url": {"url": "data:image/png;base64,&"}}),
    "no picture": user(image("text.txt")),
    "a cut picture": user(image("cut.png")),
    "a picture too long": user(image("long.png")),
    "a picture too small": user(image("dot.png")),
    "a picture elsewhere": user({"type": "image_url", "image_url": {"url": "http://a.test/a.png"}}),
    "a picture on the disk": user({"type": "image_url", "image_url": {"url": "file:///etc/a.png"}}),
    "a picture as Ollama has it": USER | {"images": ["<<small.png>>"]},
    "too many pictures": user(*[image("small.png")] * 17),
    "a file": user({"type": "file", "file": {"file_data": "<<small.png>>", "filename": "a.png"}}),
    "a page": user({"type": "file", "file": {"file_data": "<<page.pdf>>"}}),
    "pages": user({"type": "file", "file": {"file_data": "<<two.pdf>>", "pages": "2"}}),
    "pages that are not there": user(
        {"type": "file", "file": {"file_data": "<<two.pdf>>", "pages": "2-7"}}
    ),
    "a file that is not there": user({"type": "file", "file": {"file_id": "file-none"}}),
    "a file of text": user({"type": "file", "file": {"file_data": "<<text.txt>>"}}),
}

SCRIPTS: dict[str, dict[str, Json]] = {
    "text": {"text": "One two three."},
    "characters": {"text": "Grüße 🎈 世"},
    "reasoning": {"reasoning": "Hm, well.", "text": "Yes."},
    "reasoning alone": {"reasoning": "Hm.", "text": ""},
    "nothing": {"text": ""},
    "long": {"text": "word ", "tokens": 100},
    "call": {"calls": [{"name": "look", "arguments": {"a": 1}}]},
    "text and two calls": {"text": "So:", "calls": [{"name": "look", "arguments": {"a": 1}}] * 2},
    "reasoning and a call": {"reasoning": "Hm", "calls": [{"name": "look", "arguments": {"a": 2}}]},
    "a call of what is not there": {"calls": [{"name": "leap"}]},
    "json": {"text": '{"a": 5}'},
    "fails at once": {"text": "Hello", "fail_at_token": 0},
    "fails later": {"text": "Hello", "fail_at_token": 3},
    "an unknown field": {"tekst": "Hello"},
}

_STRICT = {"type": "function", "function": FUNCTION | {"strict": True}}
_ODD_SCHEMA = {"type": "object", "properties": {"p": {"type": "string", "format": "path"}}}
_ODD_TOOL = {"type": "function", "function": {"name": "open", "parameters": _ODD_SCHEMA}}
TOOLS: dict[str, dict[str, Json]] = {
    "auto": {"tools": [TOOL]},
    "required": {"tools": [TOOL], "tool_choice": "required"},
    "none": {"tools": [TOOL], "tool_choice": "none"},
    "named": {
        "tools": [TOOL, _ODD_TOOL],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
    },
    "named, not there": {
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "leap"}},
    },
    "one at most": {"tools": [TOOL], "parallel_tool_calls": False},
    "strict": {"tools": [_STRICT], "tool_choice": "required"},
    "not enforced in whole": {"tools": [_ODD_TOOL], "tool_choice": "required"},
    "strict, and not enforced": {
        "tools": [{"type": "function", "function": {**_ODD_TOOL["function"], "strict": True}}]
    },
    "run elsewhere": {"tools": [{"type": "web_search"}, TOOL]},
    "choice without tools": {"tool_choice": "required"},
    "two of one name": {"tools": [TOOL, TOOL]},
    "no name": {"tools": [{"type": "function", "function": {}}]},
    "a bad name": {"tools": [{"type": "function", "function": {"name": "a b"}}]},
}

_NAMED = {"name": "form", "schema": SCHEMA}
FORMS: dict[str, dict[str, Json]] = {
    "text": {"response_format": {"type": "text"}},
    "an object": {"response_format": {"type": "json_object"}},
    "a schema": {"response_format": {"type": "json_schema", "json_schema": _NAMED}},
    "a schema without a name": {
        "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    },
    "an unknown form": {"response_format": {"type": "yaml"}},
    "a choice": {"structured_outputs": {"choice": ["red", "blue"]}},
    "json": {"structured_outputs": {"json": SCHEMA}},
    "json as a text": {"structured_outputs": {"json": json.dumps(SCHEMA)}},
    "a grammar": {"structured_outputs": {"grammar": 'start: "a"+ "b"\n'}},
    "a wrong grammar": {"structured_outputs": {"grammar": "start: ((\n"}},
    "a wrong pattern": {"structured_outputs": {"regex": "(("}},
    "two forms": {"structured_outputs": {"regex": "a", "choice": ["a"]}},
    "a form and an older name": {"guided_regex": "a", "response_format": {"type": "json_object"}},
    "a schema of an unknown type": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"type": "x"}},
        }
    },
}

MORE: dict[str, dict[str, Json]] = {
    "log-probabilities": {"logprobs": True, "top_logprobs": 3},
    "two choices with log-probabilities": {"n": 2, "logprobs": True, "temperature": 1, "seed": 3},
    "usage": {"stream_options": {"include_usage": True}},
    "usage each time": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "filling": {"stream_options": {"include_obfuscation": True}},
    "token ids of all": {"return_token_ids": True, "prompt_logprobs": 1},
    "stopped by a text": {"stop": ["lo"], "include_stop_str_in_output": True},
    "lengths that differ": {"max_tokens": 3, "max_completion_tokens": 4},
    "more than there is room for": {"max_tokens": 90000},
    "unknown fields": {"probe": 1, "other": {"inner": 2}},
    "nothing in many fields": {"stop": None, "tools": [], "logit_bias": {}, "metadata": None},
    "a model that is not there": {"model": "nobody"},
    "a model by its other name": {"model": "other-name"},
    "no model": {"model": None},
}


def requests() -> Iterator[Request]:
    """Yield the requests of each API with answers."""
    yield from _chats()
    yield from _texts()
    yield from _responses()
    yield from _messages()
    yield from _tokens_and_vectors()


def _ways(name: str, path: str, body: Json, *, renders: bool = False) -> Iterator[Request]:
    """Yield a request, its stream, and its prompt.

    A request that fails at its first token is not streamed, because timing decides whether it fails
    before its status is sent.
    """
    yield (request := post(name, path, body))
    if not name.endswith("fails at once"):
        yield request.streamed()
    if renders:
        yield post(name, f"{path}/render", body)


def _chats() -> Iterator[Request]:
    base = {"model": "mock", "max_tokens": 60}
    for name, messages in CHATS.items():
        yield from _ways(name, CHAT, base | {"messages": messages}, renders=True)
        counted = {"model": "mock", "messages": messages}
        yield post(name, f"{CHAT}/input_tokens", counted)
        yield post(name, "/tokenize", counted)
        yield post(name, "/apply-template", counted)
    for name, message in PICTURES.items():
        body = base | {"messages": [message], "return_image_transforms": True}
        yield from _ways(name, CHAT, body, renders=True)
        yield post(f"{name}, light", f"{CHAT}/render", body | {"light": True})
        yield post(name, "/v1/embeddings", {"model": "mock", "messages": [message]})
        yield post(name, "/tokenize", {"model": "mock", "messages": [message]})
    for name, fields in SCRIPTS.items():
        body = base | {"messages": [user(script(**fields))]}
        yield from _ways(f"script: {name}", CHAT, body | {"logprobs": True})
        yield from _ways(f"script with tools: {name}", CHAT, body | {"tools": [TOOL]})
    for name, fields in {**TOOLS, **FORMS, **MORE}.items():
        body = base | {"messages": [USER]} | fields
        yield from _ways(f"more: {name}", CHAT, body, renders=True)
        yield post(f"more: {name}", "/invocations", body)


PROMPTS: dict[str, Json] = {
    "two texts": ["Hello", "World"],
    "token ids": [72, 105],
    "lists of token ids": [[72, 105], [72]],
    "mixed": ["Hello", [72]],
    "empty": "",
    "an empty list": [],
    "a token id that is not there": [99999],
    "a negative token id": [-1],
    "an object": {"a": 1},
    "characters": "Grüße 🎈 <|im_end|>",
}


def _texts() -> Iterator[Request]:
    base = {"model": "mock", "max_tokens": 30}
    for name, prompt in PROMPTS.items():
        body = base | {"prompt": prompt, "logprobs": 1}
        yield from _ways(name, TEXT, body, renders=True)
        yield from _ways(f"{name}, echoed", TEXT, body | {"echo": True, "n": 2})
        yield post(name, "/v1/embeddings", {"model": "mock", "input": prompt})
        yield post(name, "/tokenize", {"model": "mock", "prompt": prompt})
        yield post(name, "/detokenize", {"model": "mock", "tokens": prompt})
        yield post(f"prompt: {name}", "/invocations", body)
        yield post(f"input: {name}", "/invocations", {"model": "mock", "input": prompt})
    for name, fields in SCRIPTS.items():
        yield from _ways(f"script: {name}", TEXT, base | {"prompt": script(**fields)})
    for name, fields in {**FORMS, **MORE}.items():
        yield from _ways(f"more: {name}", TEXT, base | {"prompt": "Hello"} | fields, renders=True)


ITEMS: dict[str, Json] = {
    "a message": [USER],
    "parts": [user({"type": "input_text", "text": "Hello"})],
    "turns": [
        USER,
        {"role": "assistant", "content": [{"type": "output_text", "text": "Well"}]},
        user("And?"),
    ],
    "developer": [{"role": "developer", "content": "Be short."}, USER],
    "a picture": [user({"type": "input_image", "image_url": url("small.png"), "detail": "low"})],
    "a file": [user({"type": "input_file", "file_data": "<<page.pdf>>"})],
    "a call and its result": [
        USER,
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "a result"},
    ],
    "a result without a call": [
        {"type": "function_call_output", "call_id": "c1", "output": "a result"}
    ],
    "reasoning": [
        USER,
        {"type": "reasoning", "id": "r", "summary": [], "content": [
            {"type": "reasoning_text", "text": "Hm"}]},
        SAID,
        user("And?"),
    ],
    "an item that is not there": [{"type": "item_reference", "id": "msg_none"}],
    "an unknown item": [{"type": "computer_call"}],
    "an unknown part": [user({"type": "input_audio"})],
    "nothing": [],
    "a number": 5,
}  # fmt: skip


def _responses() -> Iterator[Request]:
    base = {"model": "mock", "max_output_tokens": 60, "store": False}
    for name, items in ITEMS.items():
        yield from _ways(name, RESPONSE, base | {"input": items}, renders=True)
        yield post(name, f"{RESPONSE}/input_tokens", {"model": "mock", "input": items})
    tools = {"tools": [{"type": "function", **FUNCTION}]}
    for name, fields in SCRIPTS.items():
        body = base | {"input": script(**fields)}
        yield from _ways(f"script: {name}", RESPONSE, body)
        yield from _ways(f"script with tools: {name}", RESPONSE, body | tools)
    texts: dict[str, Json] = {
        "a schema": {"text": {"format": {"type": "json_schema", **_NAMED}}},
        "an object": {"text": {"format": {"type": "json_object"}}},
        "required": tools | {"tool_choice": "required"},
        "named": tools | {"tool_choice": {"type": "function", "name": "look"}},
        "allowed": tools | {"tool_choice": {
            "type": "allowed_tools", "mode": "required",
            "tools": [{"type": "function", "name": "look"}]}},
        "namespace": {"tools": [{"type": "namespace", "name": "n", "description": "d", "tools": [
            {"type": "function", **FUNCTION}]}], "tool_choice": "required"},
        "elsewhere": {"tools": [{"type": "web_search"}]},
        "log-probabilities": {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        "filling": {"stream_options": {"include_obfuscation": True}},
        "an unknown include": {"include": ["everything"]},
        "what follows nothing": {"previous_response_id": "resp_none"},
    }  # fmt: skip
    for name, fields in {**texts, **FORMS, **MORE}.items():
        body = base | {"input": "Hello"} | fields
        yield from _ways(f"more: {name}", RESPONSE, body, renders=True)


def _block(name: str, kind: str = "image/png", **more: Json) -> Json:
    source = {"type": "base64", "media_type": kind, "data": f"<<{name}>>"}
    is_pdf = kind == "application/pdf"
    return {"type": "document" if is_pdf else "image", "source": source, **more}


_USED = {"role": "assistant", "content": [
    {"type": "tool_use", "id": "c1", "name": "look", "input": {"a": 1}}]}  # fmt: skip
_USED_UP = user({"type": "tool_result", "tool_use_id": "c1", "content": "a result"})
_ANTHROPIC_TOOL = {"name": "look", "description": "Looks.", "input_schema": SCHEMA}
BLOCKS: dict[str, dict[str, Json]] = {
    "turns": {"messages": [USER, SAID, user("And?")]},
    "system": {"messages": [USER], "system": [{"type": "text", "text": "Be short."}]},
    "cached": {"messages": [user(part("Hello") | {"cache_control": {"type": "ephemeral"}})]},
    "a picture": {"messages": [user(_block("small.png"), part("What?"))]},
    "a picture of another type": {"messages": [user(_block("small.png", "image/tiff"))]},
    "a document": {"messages": [user(_block("page.pdf", "application/pdf", title="A page"))]},
    "a document of text": {"messages": [user(
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a"}}
    )]},
    "citations": {"messages": [user(_block("page.pdf", "application/pdf", citations={
        "enabled": True}))]},
    "a call and its result": {"messages": [USER, _USED, _USED_UP], "tools": [_ANTHROPIC_TOOL]},
    "a wrong result": {"messages": [USER, _USED_UP]},
    "thought": {"messages": [USER, {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "Hm", "signature": ""}, part("Well")]}, user("And?")]},
    "ends with the assistant": {"messages": [USER, SAID]},
    "an unknown block": {"messages": [user({"type": "search_result"})]},
    "any": {"messages": [USER], "tools": [_ANTHROPIC_TOOL], "tool_choice": {"type": "any"}},
    "named": {"messages": [USER], "tools": [_ANTHROPIC_TOOL], "tool_choice": {
        "type": "tool", "name": "look", "disable_parallel_tool_use": True}},
    "elsewhere": {"messages": [USER], "tools": [
        {"type": "web_search_20250305", "name": "web_search"}]},
    "no length": {"messages": [USER], "max_tokens": None},
    "a form": {"messages": [USER], "output_config": {"format": {
        "type": "json_schema", "schema": SCHEMA}}},
    "an unknown model": {"messages": [USER], "model": "nobody"},
    "unknown fields": {"messages": [USER], "probe": 1},
}  # fmt: skip


def _messages() -> Iterator[Request]:
    base = {"model": "mock", "max_tokens": 60}
    for name, fields in BLOCKS.items():
        yield from _ways(name, MESSAGE, base | fields, renders=True)
        counted = {k: v for k, v in fields.items() if k != "max_tokens"} | {"model": "mock"}
        yield post(name, f"{MESSAGE}/count_tokens", counted)
    for name, fields in SCRIPTS.items():
        body = base | {"messages": [user(script(**fields))]}
        yield from _ways(f"script: {name}", MESSAGE, body)
        yield from _ways(f"script with tools: {name}", MESSAGE, body | {"tools": [_ANTHROPIC_TOOL]})
    for name, fields in FORMS.items():
        yield from _ways(f"more: {name}", MESSAGE, base | {"messages": [USER]} | fields)


def _tokens_and_vectors() -> Iterator[Request]:
    path = "/inference/v1/generate"
    base = {"model": "mock", "token_ids": [72, 105]}
    tokens: dict[str, Json] = {
        "log-probabilities": {"sampling_params": {"logprobs": 2, "max_tokens": 3}},
        "usage": {"stream_options": {"include_usage": True}},
        "a form": {"sampling_params": {"structured_outputs": {"choice": ["a"]}, "max_tokens": 9}},
        "no token": {"token_ids": []},
        "a token that is not there": {"token_ids": [99999]},
        "a picture without its tokens": {"features": {"image_urls": [url("small.png")]}},
        "arrays": {"features": {"kwargs_data": {}}},
    }
    for name, fields in tokens.items():
        yield from _ways(name, path, base | fields)
    for name, fields in {
        "base64": {"input": ["a", "b"], "encoding_format": "base64"},
        "other dimensions": {"input": "a", "dimensions": 4},
        "nothing": {},
        "both": {"input": "a", "messages": [USER]},
    }.items():
        yield post(f"more: {name}", "/v1/embeddings", {"model": "mock"} | fields)
