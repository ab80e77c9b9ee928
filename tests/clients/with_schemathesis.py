"""Schemathesis finds nothing: the server does what its OpenAPI document says, whatever is sent.

It is tried on the mock, with every route open; what unloads it has it loaded again by the next who
asks. The seed is fixed, and so is the number of examples. Responses are made, looked for, stopped
and deleted, as the links of the document say.
Two things no schema says: which models there are, so what is valid asks for the mock, and which
fields go together, so what a schema allows may still be refused with a 400.
"""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from conftest import serving
from openapi_spec_validator import validate

CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "400", "404"]
"""
HOOKS = '''
"""Makes what is valid ask for what is there."""

import schemathesis


@schemathesis.hook
def before_call(context, case, kwargs):
    if case.meta is not None and case.meta.generation.mode.is_negative:
        return
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = "mock"
    if "name" in case.path_parameters:
        case.path_parameters["name"] = "mock"
'''


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    fleet = {"manage": True, "load": "use"}
    data = {"folder": str(folder / "data")}
    with serving(folder, models=["mock"], allow_generate=True, fleet=fleet, data=data) as server:
        yield server


def test_the_document_is_an_openapi_document(server):
    with urllib.request.urlopen(f"{server.url}/openapi.json", timeout=300) as answer:
        validate(json.load(answer))


def test_schemathesis_finds_no_failure(server, tmp_path):
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    (tmp_path / "only_what_is_there.py").write_text(HOOKS)
    program = Path(sys.executable).with_name("schemathesis")
    options = ["--seed", "1", "--max-examples", os.environ.get("EXAMPLES", "10"), "--no-color"]
    options += ["--request-timeout", "600"]  # some ask for as many tokens as the context holds
    command = [program, "--config-file", config, "run", f"{server.url}/openapi.json", *options]
    found = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"SCHEMATHESIS_HOOKS": "only_what_is_there"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-20_000:]
    print(found.stdout[-2_000:])
