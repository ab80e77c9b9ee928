"""The runner of replicas, in this process, in front of a real Ray Serve."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

pytest.importorskip("ray", reason="Ray is not installed: nox -s ray")

from ray import serve
from ray_cluster import APP, cluster, deploy, kill, processes

from mock_model import script, wait_until
from vlmkit.errors import EngineError
from vlmkit.interfaces.runner import Runner
from vlmkit.model import Model
from vlmkit_ray.runner import RayPeer, RayRunner
from vlmkit_testing import RunnerContract

pytestmark = [pytest.mark.posix, pytest.mark.server, pytest.mark.filterwarnings("ignore")]

FEW = 'model = "mock"\nscheduler = {max_running = 6, max_waiting = 6}'
OTHER = 'model = "mock"\nengine = {use = "mock", capacity_tokens = 2048}'


@pytest.fixture(scope="module", autouse=True)
def _ray():
    with cluster():
        yield


def runner() -> RayRunner:
    return RayRunner(RayPeer(serve.get_deployment_handle("model-mock", APP), "mock", 300.0), {})


@contextmanager
def updating(folder):
    """Deploy another model meanwhile; Ray Serve waits for the answers of the one before."""
    with ThreadPoolExecutor(1) as thread:
        deployed = thread.submit(deploy, folder, OTHER)
        yield
        deployed.result()


def test_an_update_to_another_model_lets_answers_end_and_refuses_requests_at_once(tmp_path):
    deploy(tmp_path, FEW)
    with Model(runner()) as model:
        chunks = iter(model.stream(script(text="0123456789", tokens=300, latency_s=0.1)))
        begun = next(chunks)
        with updating(tmp_path):
            with pytest.raises(EngineError):
                wait_until(lambda: model.generate("hello").text != "hello")
            assert begun + "".join(chunks) == "0123456789" * 30


class TestRayRunner(RunnerContract):
    timeout_s = 300.0
    too_many = 13

    @pytest.fixture(autouse=True)
    def _replicas(self, tmp_path):
        self.folder = tmp_path
        deploy(tmp_path, FEW)

    def make(self) -> Runner:
        return runner()

    def fail(self, runner: Runner) -> None:
        """Replace the replicas by some of another model, which the runner refuses."""
        before = set(processes())
        with updating(self.folder):
            wait_until(lambda: set(processes()) - before)
            for process in before & set(processes()):  # it would end its answers first
                kill(process)
