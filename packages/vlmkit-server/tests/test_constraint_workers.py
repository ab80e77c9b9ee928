"""A server that tries constraints in worker processes, and compilers that never return."""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from process_tree import children_of, descendants_of, pid_of_pipeline
from running_server import chat, eventually, http_request, process
from two_keys import headers_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked at in /proc")

PLUGIN = Path(__file__).with_name("hostile_compiler.py")
SECRET = "zq17secret"


@contextlib.contextmanager
def run_server(folder, **settings):
    given = {
        "server.port": 0,
        "constraint.use": "hostile",
        "plugins.files": [str(PLUGIN)],
        "plugins.only": ["vlmkit-mock"],
        **settings,
    }
    assigned = [w for name, v in given.items() for w in ("--set", f"{name}={json.dumps(v)}")]
    with process([sys.executable, "-m", "vlmkit", "serve", "mock", *assigned], folder) as server:
        assert eventually(lambda: "is ready" in server.log.read_text()), server.log.read_text()
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with run_server(tmp_path_factory.mktemp("constraints")) as started:
        yield started


def constrained(order, **fields):
    return chat(max_tokens=2, structured_outputs={"regex": f"{order} {SECRET}"}, **fields)


def refusal(answer):
    return answer.status_code, answer.json()["error"]


def workers(server):
    """Return the constraint workers and their trials."""
    return descendants_of(pid_of_pipeline(server))


def trials(server):
    """Return the trial processes: the children of the constraint worker."""
    return [t for worker in children_of(pid_of_pipeline(server)) for t in children_of(worker)]


def _ask_and_leave(server, order, leaves):
    """Send a request, and disconnect at an event."""
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(http_request(constrained(order)))
        leaves.wait()


def test_a_ready_server_has_started_its_constraint_worker(tmp_path):
    with run_server(tmp_path) as server:
        (worker,) = workers(server)
        assert server.post(constrained("any")).status_code == 200
        assert eventually(lambda: not trials(server))
        assert workers(server) == [worker]


def test_a_compiler_that_no_worker_can_build_is_logged_and_its_requests_are_refused(tmp_path):
    plugin = tmp_path / "only_in_servers.py"
    plugin.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(PLUGIN.parent)!r})\n"
        "import vlmkit\n"
        "from hostile_compiler import HostileCompiler\n"
        "VLMKIT_API = (1, 0)\n"
        "def build(context):\n"
        "    if 'constraint_worker' in sys.argv[0]:\n"
        "        raise RuntimeError\n"
        "    return HostileCompiler()\n"
        "@vlmkit.hookimpl\n"
        "def vlmkit_register_constraints(registry):\n"
        "    registry.add('hostile', build, description='hostile')\n"
    )
    with run_server(tmp_path, **{"plugins.files": [str(plugin)]}) as server:
        assert eventually(lambda: "constraints are refused" in server.log.read_text())
        for _ in range(2):
            status, error = refusal(server.post(constrained("any")))
            assert (status, error["message"]) == (500, "the server failed; see its log")
        assert "ended; another is started" not in server.log.read_text()


def test_a_constraint_that_passes_its_trial_is_enforced(server):
    answer = server.post(constrained("any"))
    assert answer.status_code == 200, answer.text
    assert eventually(lambda: not trials(server))


@pytest.mark.parametrize(
    ("order", "said"),
    [("spin", "0.9 s of CPU time"), ("eat", "192 MiB"), ("slow", "0.15 s")],
)
def test_a_constraint_over_a_limit_is_refused_and_its_trial_killed(server, order, said):
    status, error = refusal(server.post(constrained(order)))
    assert (status, error["code"]) == (400, "invalid_constraint")
    assert error["param"] == "structured_outputs.regex"
    assert said in error["message"]
    assert eventually(lambda: not trials(server))
    assert server.post(constrained("any")).status_code == 200
    assert SECRET not in server.log.read_text()


def cpu_s_of_trials(server):
    """Return the CPU time of ended trials."""
    (worker,) = workers(server)
    fields = Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[13:15])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    "num_tools",
    [pytest.param(1, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow), 32],
)
def test_trials_of_one_request_share_a_cpu_time_limit(server, num_tools):
    """Tools whose trial exceeds the limit stay unconstrained.

    With a limit for each tool, 32 tools compute for more than 20 seconds.
    """
    before_s = cpu_s_of_trials(server)
    tools = [
        {"type": "function", "function": {"name": f"t{n}", "parameters": {"title": "spin"}}}
        for n in range(num_tools)
    ]
    answer = server.post(chat(max_tokens=2, tools=tools, tool_choice="required"))
    assert answer.status_code == 200, answer.text
    assert "t0#" in answer.headers["x-vlmkit-unconstrained"]
    assert eventually(lambda: not trials(server))
    assert cpu_s_of_trials(server) - before_s < 6


def test_a_long_trial_lowers_its_priority(server):
    leaves = threading.Event()
    asking = threading.Thread(target=_ask_and_leave, args=(server, "spin", leaves))
    asking.start()
    assert eventually(lambda: [os.getpriority(os.PRIO_PROCESS, t) for t in trials(server)] == [10])
    leaves.set()
    asking.join()
    assert eventually(lambda: not trials(server))


def test_a_compiler_error_fails_its_request_without_client_text(server):
    status, error = refusal(server.post(constrained("break")))
    assert status == 500
    assert SECRET not in json.dumps(error)
    assert SECRET not in server.log.read_text()


def test_a_client_that_disconnects_ends_the_trial(server):
    leaves = threading.Event()
    asking = threading.Thread(target=_ask_and_leave, args=(server, "wait", leaves))
    asking.start()
    assert eventually(lambda: len(trials(server)) == 1)
    leaves.set()
    asking.join()
    assert eventually(lambda: not trials(server), timeout_s=30)
    assert server.post(constrained("any")).status_code == 200


def test_a_killed_worker_fails_only_its_own_requests_and_is_replaced(server):
    with ThreadPoolExecutor(1) as client:
        answer = client.submit(server.post, constrained("wait"))
        assert eventually(lambda: len(trials(server)) == 1)
        (trial,) = trials(server)
        (worker,) = set(workers(server)) - {trial}
        os.kill(worker, signal.SIGKILL)
        status, error = refusal(answer.result(60))
    assert (status, error["code"]) == (503, "prompt_not_made")
    os.kill(trial, signal.SIGKILL)
    assert server.post(constrained("any")).status_code == 200


@pytest.mark.slow
def test_a_trial_that_takes_too_long_is_killed(tmp_path):
    with run_server(tmp_path, **{"pipeline.prepare_timeout_s": 3.0}) as server:
        assert server.post(constrained("any")).status_code == 200
        status, error = refusal(server.post(constrained("wait")))
        assert (status, error["code"]) == (503, "prompt_not_made")
        assert eventually(lambda: not trials(server))


def test_a_burst_of_one_tenant_does_not_delay_the_constraint_of_another(tmp_path):
    flood, honest = headers_of(tmp_path, "flood", "honest")
    with (
        run_server(tmp_path, **{"server.keys_file": str(tmp_path / "keys.jsonl")}) as server,
        ThreadPoolExecutor(16) as clients,
    ):
        assert server.post(constrained("any"), headers=honest).status_code == 200
        answers = [
            clients.submit(server.post, constrained("wait"), headers=flood) for _ in range(16)
        ]
        assert eventually(lambda: len(trials(server)) == 1)
        for number in range(3):
            assert server.post(constrained(f"any{number}"), headers=honest).status_code == 200
        assert not any(answer.done() for answer in answers)
        assert len(trials(server)) == 1, "a tenant has one trial at a time"
        server.process.kill()
        for answer in answers:
            with contextlib.suppress(httpx2.HTTPError):
                answer.result()


@pytest.mark.parametrize("stop", ["terminate", pytest.param("kill", marks=pytest.mark.slow)])
def test_a_server_that_stops_leaves_no_process_behind(tmp_path, stop):
    with run_server(tmp_path, **{"server.drain_timeout_s": 1.0}) as server:
        leaves = threading.Event()
        asking = threading.Thread(target=_ask_and_leave, args=(server, "wait", leaves))
        asking.start()
        assert eventually(lambda: len(trials(server)) == 1)
        pids = descendants_of(server.process.pid)
        getattr(server.process, stop)()
        server.process.wait(60)
        leaves.set()
        asking.join()
        assert eventually(lambda: not any(map(is_alive, pids)), timeout_s=60)


def is_alive(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_without_workers_constraints_are_compiled_by_the_server(tmp_path):
    with run_server(tmp_path, **{"server.constraint_workers": False}) as server:
        assert server.post(constrained("any")).status_code == 200
        assert workers(server) == []
