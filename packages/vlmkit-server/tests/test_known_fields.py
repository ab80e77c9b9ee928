"""Each field of the table is sent once: it has an effect, is reported, or is refused by name."""

from dataclasses import replace
from itertools import islice

import pytest
from bodies import MINIMAL, READERS, with_field
from running_server import chat, image_part, image_url, message_content, recorded_requests, running

from vlmkit_server.operate.field_actions import actions
from vlmkit_server.wire.table import SECTIONS, TABLE

ANSWERING = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
GENERATE = "/inference/v1/generate"
HEADER = "x-vlmkit-ignored"
OTHER = 7.5  # neutral for no field
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
FLAT_TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}}
OWN_TOOL = {"name": "look", "input_schema": {"type": "object"}}
CHOICES = {"choice": ["a", "b"]}
_DATA = {"type": "base64", "media_type": "image/png", "data": image_url().partition(",")[2]}
SHOWN = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": [image_part(image_url())]}]},
    "/v1/messages": {
        "messages": [{"role": "user", "content": [{"type": "image", "source": _DATA}]}]
    },
    "/v1/responses": {
        "input": [{"role": "user", "content": [{"type": "input_image", "image_url": image_url()}]}]
    },
}
"""Fields of bodies with an image."""

VALUES = {
    "add_generation_prompt": False,
    "add_special_tokens": False,
    "allowed_token_ids": [104],
    "background": True,
    "bad_words": ["x"],
    "best_of": 2,
    "cache_salt": "a",
    "chat_template_kwargs": {"thinking": True},
    "continue_final_message": True,
    "dry_allowed_length": 3,
    "dry_base": 2.0,
    "dry_multiplier": 0.8,
    "dry_penalty_last_n": 32,
    "dry_sequence_breakers": ["x"],
    "echo": True,
    "frequency_penalty": 0.5,
    "guided_choice": ["a"],
    "guided_grammar": 'start: "a"',
    "guided_json": {"type": "object"},
    "guided_regex": "a+",
    "ignore_eos": True,
    "include": ["message.output_text.logprobs"],
    "include_stop_str_in_output": True,
    "input": "another",
    "instructions": "be brief",
    "logit_bias": {"104": 1},
    "max_completion_tokens": 2,
    "max_image_tokens": 5,
    "max_output_tokens": 2,
    "max_tokens": 2,
    "max_tool_calls": 3,
    "messages": [{"role": "user", "content": "another"}],
    "min_p": 0.5,
    "min_tokens": 2,
    "mm_processor_kwargs": {"max_pixels": 100},
    "model": "another",
    "n": 2,
    "output_config": {"format": {"type": "json_schema", "schema": {}}},
    "parallel_tool_calls": False,
    "presence_penalty": 0.5,
    "previous_response_id": "resp_none",
    "priority": 5,
    "prompt": "another",
    "prompt_logprobs": 2,
    "reasoning": {"effort": "low"},
    "reasoning_effort": "low",
    "repeat_last_n": 5,
    "repetition_penalty": 1.5,
    "response_format": {"type": "json_object"},
    "return_image_transforms": True,
    "return_places": True,
    "return_token_ids": True,
    "seed": 7,
    "server_tools": ["none"],
    "skip_special_tokens": False,
    "stop": ["e"],
    "stop_sequences": ["e"],
    "stop_token_ids": [101],
    "store": False,
    "stream": True,
    "stream_options": {"include_obfuscation": True, "include_usage": True},
    "structured_outputs": CHOICES,
    "system": "be brief",
    "temperature": 0.5,
    "text": {"format": {"type": "json_object"}},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "thinking_token_budget": 5,
    "tool_choice": "required",
    "top_k": 3,
    "top_logprobs": 2,
    "top_p": 0.5,
    "truncation": "auto",
    "typical_p": 0.5,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.2,
}
"""For each implemented field, a value with an effect."""

OF_ROUTES = {
    ("/v1/completions", "logprobs"): 2,
    ("/v1/chat/completions", "logprobs"): True,
    ("/v1/chat/completions", "tools"): [TOOL],
    ("/v1/responses", "tools"): [FLAT_TOOL],
    ("/v1/messages", "tools"): [OWN_TOOL],
    ("/v1/messages", "tool_choice"): {"type": "any"},
}
WITH = {
    "parallel_tool_calls": ("tools",),
    "stream_options": ("stream",),
    "tool_choice": ("tools",),
    "top_logprobs": ("logprobs", "include"),
}
"""Fields that another field needs to have an effect."""


def base(path):
    body = dict(MINIMAL[path]) if path in MINIMAL else {"token_ids": [104, 105]}
    body |= SHOWN.get(path, {})
    limit = {"/v1/responses": "max_output_tokens"}.get(path, "max_tokens")
    return body | ({"sampling_params": {"max_tokens": 4}} if path == GENERATE else {limit: 4})


def batched(values):
    """Return lists of as many fields as a header names."""
    left = iter(values)
    return iter(lambda: list(islice(left, 16)), [])


def value_of(path, name):
    return OF_ROUTES.get((path, name), VALUES.get(name))


def outcome_of(server, requests, body, path):
    """Return the status, the ignored fields, the request that reaches the model, and the answer."""
    requests.clear()
    answer = server.post(body, path)
    ignored = answer.headers.get(HEADER)
    if answer.status_code != 200:
        return answer.status_code, ignored, [], answer.json()["error"]["message"]
    made = [
        (
            replace(request, id="", messages=()),
            [message_content(each) for each in request.messages],
        )
        for request in requests
    ]
    if "text/event-stream" in answer.headers["content-type"]:
        return 200, ignored, made, {name for name in ("usage", "obfuscat") if name in answer.text}
    fields = answer.json()
    for name in ("id", "created", "created_at", "completed_at"):
        fields.pop(name, None)
    for item in fields.get("output", ()):
        item.pop("id", None)
    return 200, ignored, made, fields


@pytest.fixture(scope="module")
def tokens():
    with running(allow_generate=True) as server:
        yield server


def test_a_field_is_listed_once_in_the_table():
    names = [row.field for rows in SECTIONS.values() for row in rows]
    assert len(names) == len(set(names)) == len(TABLE)
    assert len(TABLE) > 250


@pytest.mark.parametrize("path", sorted(READERS))
def test_every_field_of_a_body_has_a_row(path):
    reader = READERS[path]
    assert reader.fields <= TABLE.keys()
    assert reader.hints <= TABLE.keys()


def test_each_field_marked_as_implemented_is_a_field_of_some_body():
    taken = {
        field.removeprefix(reader.inner)
        for reader in READERS.values()
        for field, action in actions(reader).items()
        if action == "implemented"
    }
    rows = {row.field for row in TABLE.values() if row.action == "implemented"}
    assert rows <= taken


def names_of(path, action):
    """Return the top-level fields of a body with an action."""
    found = sorted(actions(READERS[path]).items())
    return [field for field, each in found if each == action and "." not in field]


def of_action(action):
    return [
        pytest.param(path, field, id=f"{path} {field}")
        for path in ANSWERING
        for field in names_of(path, action)
    ]


@pytest.mark.parametrize(("path", "name"), of_action("implemented"))
def test_an_implemented_field_has_an_effect(server, monkeypatch, path, name):
    if name == "image":  # accepts only its neutral values
        return
    needed = [each for each in WITH.get(name, ()) if each in READERS[path].fields]
    body = base(path) | {each: value_of(path, each) for each in needed}
    with recorded_requests(server, monkeypatch) as requests:
        plain = outcome_of(server, requests, body, path)
        assert outcome_of(server, requests, body, path)[:2] == plain[:2]
        sent = body | {name: value_of(path, name)}
        assert value_of(path, name) is not None
        changed = outcome_of(server, requests, sent, path)
    assert changed != plain
    if changed[0] == 400:
        assert name in changed[3] or "within a constraint" in changed[3] or name in BY_MEANING


BY_MEANING = {"continue_final_message", "stream_options"}  # their errors name the target


@pytest.mark.parametrize("path", ANSWERING)
def test_a_rejected_field_is_named_with_its_value_and_the_accepted_ones(server, path):
    for name in names_of(path, "rejected"):
        answer = server.post(base(path) | {name: OTHER}, path)
        error = answer.json()["error"]
        assert answer.status_code == 400
        assert error["message"].startswith(f"{name} is not supported by this server")
        if name != "thread":
            assert "got a number, accepted: null" in error["message"]
        if path != "/v1/messages":
            assert (error["param"], error["code"]) == (name, "unsupported_parameter")
        assert len(error["message"]) < 1024


@pytest.mark.parametrize("path", ANSWERING)
def test_a_field_without_effect_is_reported_unless_it_is_a_label(server, monkeypatch, path):
    own, hints = READERS[path].fields, READERS[path].hints
    values = {
        name: LABELS.get((path, name), LABELS.get(name)) if name in own else OTHER
        for name in names_of(path, "no effect")
    }
    assert None not in values.values(), "add a value to LABELS"
    with recorded_requests(server, monkeypatch) as requests:
        plain = outcome_of(server, requests, base(path), path)
        for some in batched(sorted(values.items())):  # as many as a header names
            idle = outcome_of(server, requests, base(path) | dict(some), path)
            reported = [name for name, _ in some if name not in own or name in hints]
            assert idle[1] == (", ".join(reported) or None)
            assert idle[2] == plain[2]


LABELS = {
    "user": "a",
    "safety_identifier": "a",
    "prompt_cache_key": "a",
    "prompt_cache_retention": "24h",
    "metadata": {"a": "b"},
    "prediction": {"type": "content", "content": "x"},
    "prompt_cache_options": {"mode": "implicit"},
    "modalities": ["text"],
    "service_tier": "flex",
    "speed": "standard",
    "store": True,
    "thinking_token_budget": 5,
    "verbosity": "low",
    ("/v1/messages", "metadata"): {"user_id": "a"},
    ("/v1/messages", "service_tier"): "standard_only",
}


@pytest.mark.parametrize(("path", "name"), of_action("alias"))
def test_an_alias_has_the_effect_of_its_field(server, monkeypatch, path, name):
    target = READERS[path].known.aliases[name]
    value = value_of(path, target)
    body = base(path)
    is_required = path == "/v1/messages" and target == "max_tokens"
    if not is_required:
        body.pop(target, None)
    else:
        value = body[target]
    with recorded_requests(server, monkeypatch) as requests:
        own = outcome_of(server, requests, body | {target: value}, path)
        other = outcome_of(server, requests, body | {name: value}, path)
        both = outcome_of(server, requests, body | {target: value, name: value}, path)
        for neutral in TABLE[name].neutral:
            neutral_one = outcome_of(server, requests, body | {name: neutral}, path)
            assert neutral_one[:2] == (200, None)
    assert other[:3] == own[:3]
    assert both[:3] == own[:3]
    assert target in VALUES


def test_an_alias_that_contradicts_its_field_is_rejected(server):
    for one, other in (("typ_p", "typical_p"), ("n_predict", "max_tokens"), ("n_cmpl", "n")):
        if one in READERS[ANSWERING[0]].known.aliases:
            values = {one: 0.5, other: 0.25} if one == "typ_p" else {one: 3, other: 2}
            error = server.post(chat(**values)).json()["error"]
            assert error["message"] == f"{one} and {other} differ; send one of them"
            assert error["param"] == one
    error = server.post(chat(random_seed=1, sampling_seed=2)).json()["error"]
    assert error["param"] == "sampling_seed"


def neutral_values(path):
    """Return the fields of a route with their neutral values, except the limit in the body."""
    for name, action in sorted(actions(READERS[path]).items()):
        row = TABLE[name]
        if "." in name or name in LIMITS or name in MINIMAL[path]:
            continue
        empty = [[], *([] if row.acts_if_empty else [{}])] if action == "rejected" else ()
        for value in (None, *row.neutral, *empty):
            yield name, action, value


@pytest.mark.parametrize("path", ANSWERING)
def test_neutral_values_are_accepted_and_have_no_effect(server, monkeypatch, path):
    """Each server's default of a field is tried, and all of them together."""
    every = {name: v for name, _, v in neutral_values(path) if v is not None}
    with recorded_requests(server, monkeypatch) as requests:
        plain = outcome_of(server, requests, base(path), path)
        together = outcome_of(server, requests, base(path) | every, path)
        assert together[:2] == (200, None), together[3]
        for name, action, value in neutral_values(path):
            if action == "implemented" or path == ANSWERING[0]:
                found = outcome_of(server, requests, base(path) | {name: value}, path)
                assert found[:2] == plain[:2], (name, value, found[3])
                assert action == "implemented" or found[2] == plain[2], (name, value)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_an_empty_object_that_asks_for_a_search_is_refused(server, path):
    """OpenAI's client sends it for a search with the defaults."""
    answer = server.post(base(path) | {"web_search_options": {}}, path)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "web_search_options"


LIMITS = {"max_tokens", "max_output_tokens", "max_completion_tokens", "best_of"}


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict"])
def test_minus_one_means_no_limit_as_in_other_servers(server, monkeypatch, name):
    with recorded_requests(server, monkeypatch) as requests:
        assert server.post(chat(**{name: -1})).status_code == 200
    assert requests[0].params.max_tokens is None


def test_a_rejected_sampling_parameter_of_generate_is_named_with_its_location(tokens):
    found = actions(READERS[GENERATE]).items()
    names = [field for field, action in found if action == "rejected"]
    inner = [field for field in names if field.startswith("sampling_params.")]
    assert len(inner) > 100
    for name in inner:
        body = with_field(base(GENERATE), name, OTHER)
        error = tokens.post(body, GENERATE).json()["error"]
        assert error["message"].startswith(f"{name} is not supported by this server: got a number")
        assert error["param"] == name


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("maxTokens", "max_tokens"),
        ("max-tokens", "max_tokens"),
        ("topP", "top_p"),
        ("temprature", "temperature"),
        ("temperatuer", "temperature"),
        ("presence_penaltyy", "presence_penalty"),
        ("repeat_penalti", "repeat_penalty"),
    ],
)
def test_a_misspelt_field_is_refused_with_the_correct_name(server, name, near):
    for body, path in ((chat(), ANSWERING[0]), (MINIMAL["/v1/completions"], "/v1/completions")):
        error = server.post(body | {name: 1}, path).json()["error"]
        assert error["message"] == f"{name} is not known to this server (did you mean {near}?)"
        assert (error["param"], error["code"]) == (name, "unknown_parameter")
        assert server.post(body | {name: None}, path).status_code == 200


@pytest.mark.parametrize("name", ["flavour", "label", "seeds", "tops", "x_temperature_unit"])
def test_an_unknown_field_without_similar_name_is_reported(server, name):
    assert server.post(chat(**{name: 1})).headers[HEADER] == name
