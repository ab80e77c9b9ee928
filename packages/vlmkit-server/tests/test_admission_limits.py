"""The table of limits is what the server enforces, what the page shows, and complete."""

import threading
from pathlib import Path

import msgspec
import pytest
from running_server import chat, eventually, running, scripted

from vlmkit.settings.scheduler import SchedulerSettings
from vlmkit_server.admission.limits import LIMITS, REQUESTS, WAITING_FOR_MODELS, ResourceLimits
from vlmkit_server.fleet.model_spec import ModelSpec
from vlmkit_server.settings.server import ServerSettings

PAGE = Path(__file__).parents[3] / "docs/explanation/life-of-a-request.md"
SECTIONS = {"server": ServerSettings, "scheduler": SchedulerSettings}
SLOW = scripted(text="x", tokens=4000, latency_s=0.01)


def test_the_page_shows_every_row():
    shown = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    rows = [
        f"| {row.resource} | `{row.settings}` | {row.stage} | {row.share} | `{row.code}` | "
        f"{row.retry} |"
        for row in LIMITS
    ]
    assert [line for line in shown if line in rows] == rows


@pytest.mark.parametrize("row", LIMITS, ids=lambda row: row.resource)
def test_the_setting_of_a_row_exists(row):
    section, _, name = row.settings.removeprefix("half of ").partition(".")
    assert name in {field.name for field in msgspec.structs.fields(SECTIONS[section])}


def test_every_quota_is_a_row():
    quotas = ResourceLimits(ServerSettings()).quotas
    assert set(quotas) <= {row.resource for row in LIMITS}
    assert {name: quota.limit for name, quota in quotas.items()} == {
        row.resource: row.most(ServerSettings()) for row in LIMITS if row.resource in quotas
    }


def test_a_refused_request_gets_the_error_of_its_row():
    with running(max_requests=1) as server:
        first = server.connect(chat(SLOW, stream=True))
        assert eventually(lambda: server.service.admission.limits.requests.num_held == 1)
        refused = server.post(chat("hello"))
        assert refused.json()["error"]["message"].startswith(REQUESTS.message)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, REQUESTS.code)
        assert int(refused.headers["retry-after"]) >= 1
        first.close()
        assert eventually(lambda: server.service.admission.limits.requests.num_held == 0)


def test_no_more_requests_than_the_row_says_wait_for_a_model():
    may_load = threading.Event()

    def load():
        may_load.wait(60)
        raise RuntimeError("it is not loaded in this test")

    most = WAITING_FOR_MODELS.most(ServerSettings(max_requests=4))
    with running(models={"late": ModelSpec(load=load)}, max_requests=4) as server:
        try:
            waiting = [server.connect({**chat("hello"), "model": "late"}) for _ in range(most)]
            late = server.service.models["late"]
            assert eventually(lambda: late.num_waiting == most)
            refused = server.post({**chat("hello"), "model": "late"})
            assert refused.json()["error"]["message"].startswith(WAITING_FOR_MODELS.message)
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            for connection in waiting:
                connection.close()
            assert eventually(lambda: late.num_waiting == 0)
        finally:
            may_load.set()
