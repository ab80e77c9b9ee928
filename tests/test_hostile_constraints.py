"""Hostile constraints: every construct with doubling numbers, in every API.

`python tests/hostile_constraints.py` runs the full set for minutes and prints the figures. These
tests assert only what holds on a machine of any speed.
"""

import json
import sys

import pytest

from hostile_constraints import Attack, bodies, constraints, served

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked at in /proc")


def test_hostile_constraints_are_refused_or_reported_and_delay_no_other_request(tmp_path):
    worst = [
        {"regex": "a{1000000000}"},
        {"regex": "((a{999}){999}){999}"},
        {"json": {"type": "integer", "multipleOf": 99_999_989}},
        {"json": {"type": "string", "pattern": "^(a{9999}){9999}$"}},
        {"grammar": 'start: a{9999}\na: ("b"{9999}){9999}'},
        {"grammar": 'start: %json {"multipleOf": 99999989}'},
        {"json": {"type": "array", "minItems": 10**12}},
        {"json": {"type": "object", "not": {"required": ["a"]}}},
    ]
    with served(tmp_path) as server:
        for constraint in worst:
            for path, body in bodies(constraint):
                answer = server.post(body, path)
                if "structured_outputs" not in body:  # a schema that need not be strict
                    assert answer.status_code == 200, (path, constraint, answer.text)
                    keyword = [*constraint["json"]][-1]
                    assert f"#/{keyword}" in answer.headers["x-vlmkit-unconstrained"]
                    continue
                assert answer.status_code == 400, (path, constraint, answer.text)
                error = answer.json()["error"]
                assert error.get("param", "") or path == "/v1/messages"
        assert server.post({**dict(bodies({"choice": ["yes"]}))["/v1/chat/completions"]}).is_success
        log = server.log.read_text()
        assert not any(word in log for word in ("a{9", "multipleOf", "minItems", "start:"))


@pytest.mark.slow
def test_no_constraint_takes_more_than_its_limits(tmp_path):
    """Prints time and memory of each; asserts the limits of trials, which the system enforces."""
    with served(tmp_path) as server:
        attack = Attack(server)
        for name, constraint in constraints():
            attack.send(name, constraint)
        print(json.dumps(attack.figures, indent=1))
        assert attack.figures["answers other than 200 and 400"] == 0
        assert attack.figures["largest growth of the server, MiB"] < 200
        assert server.post({**dict(bodies({"choice": ["yes"]}))["/v1/chat/completions"]}).is_success
