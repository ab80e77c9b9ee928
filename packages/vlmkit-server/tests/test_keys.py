"""Each route requires a key with its scope, and tenants learn nothing about each other."""

import re
import time
from itertools import product

import anthropic
import openai
import pytest
from litestar.routes import HTTPRoute
from running_server import chat, eventually, http_client, running

from vlmkit.errors import ConfigError
from vlmkit.settings.scope import SCOPES
from vlmkit_server.app import create_app
from vlmkit_server.auth.key import new_key
from vlmkit_server.auth.key_file import Revoked, add_line
from vlmkit_server.exchange.service import Service
from vlmkit_server.settings.fleet import FleetSettings
from vlmkit_server.settings.server import ServerSettings

LIVENESS = {"/healthz", "/health", "/ping"}
SPECIAL = {
    "/v1/embeddings": "embed",
    "/v1/rerank": "embed",
    "/rerank": "embed",
    "/v2/rerank": "embed",
    "/v1/score": "embed",
    "/score": "embed",
    "/inference/v1/generate": "tokens",
    "/v1/models/load": "admin",
    "/v1/models/unload": "admin",
    "/props": "admin",
    "/slots": "admin",
    "/models/load": "admin",
    "/models/unload": "admin",
}
ANY_KEY = {"/readyz", "/version", "/openapi.json", "/v1/models", "/v1/models/{name:path}"}
ANY_KEY |= {"/v1/capabilities", "/docs", "/load", "/tokenizer_info"}


@pytest.fixture(scope="module")
def key_file(tmp_path_factory):
    return tmp_path_factory.mktemp("keys") / "keys.jsonl"


@pytest.fixture(scope="module")
def secrets(key_file):
    """A key for each scope, two keys of other tenants, and some invalid ones."""
    keys = {name: new_key(name, (name,)) for name in SCOPES}
    keys |= {name: new_key(name, ("chat", "embed"), tenant="team") for name in ("one", "two")}
    keys |= {name: new_key(name, ("chat", "embed")) for name in ("stranger", "revoked")}
    keys["expired"] = new_key("expired", SCOPES, lives_s=0)
    for key, _ in keys.values():
        add_line(key_file, key)
    add_line(key_file, Revoked(keys["revoked"][0].id, int(time.time())))
    return {name: secret for name, (_, secret) in keys.items()}


@pytest.fixture(scope="module")
def guarded(key_file, secrets):
    with running(keys_file=str(key_file), fleet=FleetSettings(manage=True)) as server:
        yield server


def routes(key_file):
    settings = ServerSettings(keys_file=str(key_file), fleet=FleetSettings(manage=True))
    found = create_app(Service({}, settings)).routes
    return {
        (route.path, method)
        for route in found
        if isinstance(route, HTTPRoute)
        for method in set(route.methods) - {"OPTIONS"}
    }


def send(server, method, path, headers):
    url = server.url + re.sub(r"\{.*?\}", "mock", path)
    return server.http.request(method, url, headers=headers)


def bearer(secret):
    return {"authorization": f"Bearer {secret}"}


def test_each_route_except_liveness_and_start_page_requires_a_key_with_its_scope(
    guarded, key_file, secrets
):
    for (path, method), scope in product(routes(key_file), (None, *SCOPES)):
        headers = {} if scope is None else bearer(secrets[scope])
        status = send(guarded, method, path, headers).status_code
        if path in LIVENESS or path == "/":
            assert status == 200
        elif scope is None:
            assert status == 401
        elif path in ANY_KEY or scope == SPECIAL.get(path, "chat"):
            assert status not in (401, 403), (path, method, scope)
        else:
            assert status == 403, (path, method, scope)


@pytest.mark.parametrize("name", ["revoked", "expired"])
def test_unknown_revoked_and_expired_keys_are_refused(guarded, secrets, name):
    answer = guarded.get("/version", headers=bearer(secrets[name]))
    assert answer.status_code == 401
    assert answer.json()["error"]["message"] == "this API key is unknown, revoked or expired"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer none"},
        {"authorization": "Basic bm9uZTpub25l"},
        {"x-api-key": "none"},
        {"authorization": "Bearer " + "x" * 10_000},
    ],
)
def test_a_refusal_asks_for_a_bearer_key_and_does_not_repeat_the_sent_key(guarded, headers):
    answer = guarded.get("/version", headers=headers)

    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["type"] == "authentication_error"
    assert answer.json()["error"]["code"] in ("missing_api_key", "invalid_api_key")
    assert all(len(value) < 8 or value not in answer.text for value in headers.values())


def test_a_key_is_accepted_in_each_header_that_clients_use(guarded, secrets):
    secret = secrets["chat"]
    for headers in (
        {"authorization": f"Bearer {secret}"},
        {"authorization": f"bearer  {secret}"},
        {"x-api-key": secret},
        {"authorization": f"Bearer {secret}", "x-api-key": secret},
        {"authorization": "Basic bm9uZTpub25l", "x-api-key": secret},  # a header for a proxy
    ):
        assert guarded.get("/version", headers=headers).status_code == 200
    twice = [("authorization", f"Bearer {secrets[name]}") for name in ("one", "stranger")]
    assert guarded.get("/version", headers=twice).status_code == 401
    both = {"authorization": f"Bearer {secrets['one']}", "x-api-key": secret}
    assert guarded.get("/version", headers=both).status_code == 401


def test_openais_client_raises_its_own_errors_and_works_with_a_key(guarded, secrets):
    def client(secret):
        return openai.OpenAI(
            base_url=f"{guarded.url}/v1", api_key=secret, http_client=guarded.http, max_retries=0
        )

    messages = [{"role": "user", "content": "hello"}]
    with pytest.raises(openai.AuthenticationError):
        client("none").chat.completions.create(model="mock", messages=messages)
    with pytest.raises(openai.PermissionDeniedError):
        client(secrets["embed"]).chat.completions.create(model="mock", messages=messages)
    done = client(secrets["chat"]).chat.completions.create(model="mock", messages=messages)
    assert done.choices[0].message.content


def test_anthropics_client_raises_its_own_errors_and_works_with_a_key(guarded, secrets):
    def create(secret):
        with http_client() as http:
            client = anthropic.Anthropic(
                base_url=guarded.url, api_key=secret, http_client=http, max_retries=0
            )
            messages = [{"role": "user", "content": "hello"}]
            return client.messages.create(model="mock", messages=messages, max_tokens=8)

    with pytest.raises(anthropic.AuthenticationError):
        create("none")
    with pytest.raises(anthropic.PermissionDeniedError):
        create(secrets["embed"])
    assert create(secrets["chat"]).content


def num_cached(server, secret, text):
    answer = server.post(chat(text, max_tokens=1), headers=bearer(secret))
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_the_prefix_cache_of_a_tenant_is_used_for_that_tenant_only(guarded, secrets):
    text = "a long question about nothing much, " * 20
    assert num_cached(guarded, secrets["one"], text) == 0
    assert num_cached(guarded, secrets["two"], text) > 0
    assert num_cached(guarded, secrets["stranger"], text) == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": "mock", "max_tokens": 1}),
        ("/v1/embeddings", {"model": "mock"}),
    ],
)
def test_each_api_separates_the_prefix_caches_of_tenants(guarded, secrets, path, body):
    text = f"{path}: a long text about nothing much, " * 20
    field = "input" if path.endswith("embeddings") else "prompt"

    def cached(secret):
        answer = guarded.post(body | {field: text}, path, headers=bearer(secret))
        return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert [cached(secrets[name]) for name in ("one", "stranger")] == [0, 0]
    assert cached(secrets["two"]) > 0


def test_stored_responses_are_found_only_by_keys_of_their_tenant(guarded, secrets):
    stored = guarded.post(
        {"model": "mock", "input": "hello"}, "/v1/responses", headers=bearer(secrets["one"])
    ).json()
    path = f"/v1/responses/{stored['id']}"

    assert guarded.get(path, headers=bearer(secrets["two"])).status_code == 200
    assert guarded.get(path, headers=bearer(secrets["stranger"])).status_code == 404


def test_a_revoked_key_is_refused_after_the_keys_file_is_reloaded(tmp_path, caplog):
    path = tmp_path / "keys.jsonl"
    key, secret = new_key("first", ("chat",))
    add_line(path, key)
    with running(keys_file=str(path)) as server:

        def status(secret):
            return server.get("/version", headers=bearer(secret)).status_code

        second, another = new_key("second", ("chat",))
        add_line(path, second)
        add_line(path, Revoked(key.id, 0))
        assert (status(secret), status(another)) == (200, 401)
        server.service.keys.reload()
        assert (status(secret), status(another)) == (401, 200)
        path.write_text("no key\n")
        server.service.keys.reload()
        assert "reload failed, keeping the previous API keys: " in caplog.text
        assert eventually(lambda: status(another) == 200)


def test_a_server_with_a_missing_keys_file_does_not_start(tmp_path):
    with pytest.raises(ConfigError, match=r"keys file .* cannot be read"):
        Service({}, ServerSettings(keys_file=str(tmp_path / "none")))


def test_preflight_requests_of_browsers_need_no_key(key_file, secrets):
    page = {"origin": "https://chat.example.com", "access-control-request-method": "POST"}
    with running(keys_file=str(key_file), allowed_origins=(page["origin"],)) as server:
        url = f"{server.url}/v1/chat/completions"
        assert server.http.request("OPTIONS", url, headers=page).status_code == 204
        assert server.http.request("OPTIONS", url).status_code == 204
        assert server.post(chat(), headers=page).status_code == 401


def test_a_server_answers_to_its_allowed_hosts_only():
    with running(allowed_hosts=("models.example.com",)) as server:

        def status(host):
            return server.get("/version", headers={"host": host}).status_code

        assert status("models.example.com") == status("Models.Example.com:443") == 200
        assert status("localhost") == 200
        assert status("elsewhere.example.com") == 421
