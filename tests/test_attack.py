"""A sample of ``nox -s attack``, and checks that the attack covers every declared field."""

import json
import random
import time
from pathlib import Path

import pytest

from attack import judge
from attack.bodies import Bodies, store
from attack.campaign import Campaign
from attack.declared import Document, Field
from attack.growths import growths, lacks_meaning
from attack.judge import Point
from attack.mutations import MARKER
from attack.served import Answer, Cost, document, target
from attack.watchers import Watchers

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")

SAMPLED = 100
CURVES = (
    "POST /v1/chat/completions json:messages[].content",
    "POST /v1/chat/completions json:dry.multiplier",
    "POST /v1/responses json:metadata",
    "POST /tokenize json:messages[].tool_calls[].function.arguments",
    "POST /v1/files form:file",
    "GET /v1/files query:after",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    pytest.importorskip("PIL.Image")
    with target(tmp_path_factory.mktemp("attacked")) as server:
        yield server


@pytest.fixture(scope="module")
def known(server):
    return Document(document(server))


def campaign(server, known, fields):
    def restore():
        return store(lambda sent: json.loads(server.send(sent).content))

    return Campaign(server, Bodies(known, restore()), fields, 0, restore)


def test_every_declared_field_has_a_generator(known):
    fields, bodies = known.fields(), Bodies(known)
    assert not [field.place for field in fields if lacks_meaning(field)]
    takes_values = [f for f in fields if f.kind in ("text", "number", "list", "any")]
    assert len(takes_values) > 1000
    assert not [field.place for field in takes_values if not growths(field, bodies)]


def test_fields_of_plugins_and_of_every_part_of_a_request_are_declared(known):
    places = {field.place for field in known.fields()}
    assert "POST /v1/chat/completions json:dry.multiplier" in places
    assert "POST /v1/messages json:deadline.seconds" in places
    assert "POST /v1/files form:file" in places
    assert "GET /v1/files query:after" in places
    assert "GET /v1/responses/{response_id} path:response_id" in places


def test_a_new_unbounded_text_field_needs_a_generator():
    declared = {"type": "object", "properties": {"brand_new": {"type": "string"}}}
    body = {"requestBody": {"content": {"application/json": {"schema": declared}}}}
    (field,) = Document({"paths": {"/v1/new": {"post": body}}}).fields()
    assert field.place == "POST /v1/new json:brand_new"
    assert lacks_meaning(field)


def test_a_sample_of_attacks_finds_no_breach(server, known):
    fields = [f for f in known.fields() if "/render" not in f.route]
    attacked = campaign(server, known, random.Random(1).sample(fields, SAMPLED))
    first = {field.place: field for field in fields[::-1]}
    curves = campaign(server, known, [first[place] for place in CURVES])
    watchers = Watchers(server)
    attacked.reach()
    attacked.mutate(per_field=2, per_operation=3)
    assert curves.curves(time.monotonic() + 600, every_shape=False) == []
    seen = watchers.close()
    attacked.read_log()
    assert not attacked.found.breaches
    assert not curves.found.breaches
    assert not seen.wrong
    assert attacked.found.num_unreached < SAMPLED / 10
    assert attacked.found.statuses[400] > SAMPLED


def test_fields_not_attacked_before_the_deadline_are_returned(server, known):
    fields = [f for f in known.fields() if growths(f, Bodies(known))][::40]
    late = campaign(server, known, fields)
    left = late.curves(time.monotonic(), every_shape=False)
    assert sorted(field.place for field in left) == sorted(field.place for field in fields)
    assert not late.found.rows


class Dear:
    """A server of which one route takes a second for each request."""

    route = "/v1/messages/render"

    def measured(self, sent):
        (answer,), cost = self.measured_together([sent])
        return answer, cost

    def measured_together(self, sent):
        cpu_s = sum(1.0 if sent.path == self.route else 0.01 for sent in sent)
        return [Answer(200, {}, b"{}") for _ in sent], Cost(cpu_s, 0, cpu_s)


def test_the_most_expensive_field_of_a_declaration_is_found(known):
    declared = {}
    for field in known.fields():
        if field.steps[-1] == "text":
            declared.setdefault(field.declaration, []).append(field)
    dear = [each for each in declared.values() if any(f.route == Dear.route for f in each)]
    fields = max(dear, key=len)
    assert len(fields) >= 8
    attacked = Campaign(Dear(), Bodies(known), fields, 0, dict)
    assert attacked.curves(time.monotonic() + 600, every_shape=False) == []
    rows = attacked.found.rows
    assert sorted(row.field.place for row in rows) == sorted(field.place for field in fields)
    dear = [row for row in rows if row.worst.cost.cpu_s == 1.0]
    assert dear
    assert {row.field.route for row in dear} == {Dear.route}


FIELD = Field("post", "/v1/x", "json", ("stop", "[]"), {"type": "string"}, "X")


def refused(message, param=None, code=None):
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return Answer(400, {}, json.dumps({"error": error}).encode())


@pytest.mark.parametrize(
    ("answer", "is_breach"),
    [
        (Answer(200, {}, b"{}"), False),
        (refused("stop[0]: too long", "stop[0]"), False),
        (refused("stop[0]: too long"), False),
        (refused("the body is not valid JSON", code="invalid_json"), False),
        (Answer(503, {"retry-after": "2"}, b"{}"), False),
        (refused("something is wrong"), True),
        (refused(f"stop: {MARKER} is too long", "stop"), True),
        (Answer(400, {}, b"no"), True),
        (Answer(500, {}, b"{}"), True),
        (Answer(503, {}, b"{}"), True),
        (Answer(429, {}, b"{}"), True),
        (Answer(0, {}, b""), True),
    ],
)
def test_answers_are_judged(answer, is_breach):
    assert bool(judge.flaw(FIELD, answer)) == is_breach


def points(cpu_s, peak_bytes=0):
    return [Point(size, 200, Cost(cpu_s(size), peak_bytes, 0)) for size in (100, 200, 400, 800)]


def test_costs_are_judged():
    assert judge.flaw_of_curve(points(lambda size: size / 1000)) is None
    assert "to the power 2.0" in judge.flaw_of_curve(points(lambda size: (size / 1000) ** 2 * 2.5))
    assert "CPU time for 0 bytes" in judge.flaw_of_curve(points(lambda size: size / 200))
    assert "MiB for 0 bytes" in judge.flaw_of_curve(points(lambda size: 0, 2**30))
    assert judge.flaw_of_curve(points(lambda size: (size / 1e5) ** 2)) is None
