"""The monitor keeps vlmkit's contract, and counts what was answered."""

import json

from vlmkit_server.interfaces.monitor import HttpEnd, HttpRequest, Monitor, ServerState
from vlmkit_testing import MonitorContract
from vlmkit_yourname.plugin import JsonMonitor

IDLE = ServerState("ready", (), 0, {}, {}, 0)


class TestJsonMonitor(MonitorContract):
    def make(self) -> Monitor:
        return JsonMonitor()


def test_requests_are_counted_by_route_and_status() -> None:
    monitor = JsonMonitor()
    for took_s, status in ((1.0, 200), (3.0, 200), (0.5, 404)):
        request = HttpRequest("id", "POST", 1.0)
        monitor.began(request)
        monitor.ended(request, HttpEnd("/v1/chat/completions", status, "", took_s))
    page = monitor.page(IDLE, "")
    assert page is not None
    answered, missed = json.loads(page.content)["routes"]
    assert (answered["num_requests"], answered["mean_s"], answered["longest_s"]) == (2, 2.0, 3.0)
    assert (missed["status"], missed["num_requests"]) == (404, 1)
