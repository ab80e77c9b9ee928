"""Models on a real Ray Serve, asked by the openai client."""

import base64
import io
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("ray", reason="Ray is not installed: nox -s ray")

import openai
from ray import serve
from ray_cluster import (
    APP,
    ask,
    cluster,
    deploy,
    deployed,
    kill,
    num_replicas,
    processes,
    text_of,
)

import vlmkit
import vlmkit_ray
from mock_model import picture, script, wait_until
from vlmkit.errors import ConfigError, RequestQuarantined
from vlmkit.model import Model
from vlmkit_ray.runner import RayPeer, RayRunner

pytestmark = [pytest.mark.posix, pytest.mark.server, pytest.mark.filterwarnings("ignore")]

MOCK = 'model = "mock"'


@pytest.fixture(scope="module", autouse=True)
def _ray():
    with cluster():
        yield


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def runner():
    """Return a runner in this process, as an ingress has one."""
    handle = serve.get_deployment_handle("model-mock", APP)
    return RayRunner(RayPeer(handle, "mock", 300.0), {})


def picture_part(color):
    buffer = io.BytesIO()
    picture(color=color).save(buffer, "PNG")
    content = base64.b64encode(buffer.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{content}"}}


class Load:
    """Threads that ask again and again, and keep every answer and every error."""

    def __init__(self, client, num, content):
        self._client, self._content = client, content
        self._is_over = threading.Event()
        self.answers, self.errors = [], []
        self._threads = [threading.Thread(target=self._ask) for _ in range(num)]

    def _ask(self):
        while not self._is_over.is_set():
            try:
                chunks = ask(self._client, self._content, stream=True)
                self.answers.append("".join(each.choices[0].delta.content or "" for each in chunks))
            except openai.APIError as error:
                self.errors.append(error)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error):
        self._is_over.set()
        for thread in self._threads:
            thread.join(300)


def test_models_of_a_config_answer_as_in_one_process(folder):
    second = 'model = "mock"\nname = "a/second one"\nengine = {use = "mock", text = "second"}'
    with deployed(folder, MOCK, second) as client, vlmkit.load("mock") as here:
        asked = [{"type": "text", "text": "what?"}, picture_part("navy")]
        expected = here.generate("what?", images=[picture(color="navy")]).text
        assert text_of(client, asked) == expected
        assert text_of(client, "hello", "a/second one") == "second"
        found = client.embeddings.create(model="mock", input=["A red house."]).data[0].embedding
        assert found == pytest.approx(here.embed(["A red house."])[0].tolist(), abs=1e-6)
        with pytest.raises(openai.BadRequestError, match="mock directive is not valid"):
            ask(client, script(text="x", unknown=1))
        with Model(runner()) as remote:
            assert remote.generate(script(text="abc")).text == "abc"
            assert list(remote.stream(script(text="abc"))) == ["a", "b", "c"]
            large = "x" * (6 * 2**20)
            with pytest.raises(vlmkit.VlmkitError, match="tokens"):
                remote.generate(large)


def test_a_chunk_reaches_its_reader_while_the_next_one_is_computed(folder):
    with deployed(folder, MOCK) as client:
        hour = script(text="ab", prefill_latency_s=0, latency_s=3600)
        # The engine of the mock waits in its step, so the replica has to be stopped by force.
        chunks = ask(client, hour, stream=True)
        texts = (each.choices[0].delta.content for each in chunks)
        assert next(text for text in texts if text) == "a"
        chunks.close()
        for process in processes():
            kill(process)


def test_tokens_are_not_collected_into_batches(folder):
    """A batch of 50 ms would hold five tokens; a slow machine makes tokens later, never fewer."""
    with deployed(folder, MOCK) as client:
        chunks = ask(client, script(text="x" * 100, latency_s=0.01), stream=True)
        texts = [each.choices[0].delta.content for each in chunks]
        assert "".join(filter(None, texts)) == "x" * 100
        assert sum(map(bool, texts)) > 50


def test_replicas_follow_the_waiting_tokens_and_no_answer_is_lost(folder):
    """From 1 to 3 and back to 1."""
    options = {"min_replicas": 1, "max_replicas": 3, "waiting_tokens": 30}
    slow = script(text="abc", prefill_latency_s=0.3)
    with deployed(folder, MOCK, **options) as client:
        assert num_replicas() == 1
        with Load(client, 2, script(text="abc")) as light:
            with Load(client, 16, slow) as heavy:
                wait_until(lambda: num_replicas() == 3)
                before = len(heavy.answers)
                wait_until(lambda: len(heavy.answers) > before + 50)
            wait_until(lambda: num_replicas() == 1)
        for load in (light, heavy):
            assert load.errors == []
            assert set(load.answers) == {"abc"}


def test_a_replica_that_is_killed_loses_no_request(folder):
    with deployed(folder, MOCK, min_replicas=2, max_replicas=2) as client, Model(runner()) as model:
        wait_until(lambda: len(processes()) == 2)
        slow = script(text="abcdef", prefill_latency_s=3.0)
        with ThreadPoolExecutor(16) as threads:
            asked = [threads.submit(text_of, client, f"{slow[:-1]} }}") for _ in range(8)]
            streams = [model.submit(model.request(f"{slow} ")) for _ in range(4)]
            kill(processes()[0])
            assert {each.result() for each in asked} == {"abcdef"}
            assert {each.result().text for each in streams} == {"abcdef"}
        wait_until(lambda: len(processes()) == 2)
        chunks = iter(model.stream(script(text="0123456789", tokens=200, latency_s=0.05)))
        begun = next(chunks)
        for process in processes():
            kill(process)
        assert begun + "".join(chunks) == "0123456789" * 20


def test_a_request_with_which_two_replicas_crashed_is_refused(folder):
    with deployed(folder, MOCK, min_replicas=2, max_replicas=2), Model(runner()) as model:
        with pytest.raises(RequestQuarantined):
            model.generate(script(text="x", crash_at_token=0))
        assert model.generate("hello").text == "hello"


def test_a_rolling_update_loses_no_answer(folder):
    def engine(text):
        return f'{MOCK}\nengine = {{use = "mock", text = "{text}", latency_s = 0.02}}'

    with deployed(folder, engine("old"), min_replicas=2, max_replicas=2) as client:
        with Load(client, 6, "hello") as load:
            wait_until(lambda: len(load.answers) > 20)
            deploy(folder, engine("new"), min_replicas=2, max_replicas=2)
            wait_until(lambda: load.answers[-20:] == ["new"] * 20)
        assert load.errors == []
        assert set(load.answers) == {"old", "new"}


def test_questions_about_a_picture_meet_the_replica_that_has_its_features(folder):
    with deployed(folder, MOCK, min_replicas=2, max_replicas=2), Model(runner()) as model:
        wait_until(lambda: num_replicas() == 2)
        first = model.runner.stats()
        for question in ("what?", "where is it?", "which colour is it?"):
            for number in range(8):
                model.generate(question, images=[picture(color=(number, 0, 0))], max_tokens=4)

        def numbers():
            stats = model.runner.stats()
            return (
                stats.num_feature_hits - first.num_feature_hits,
                stats.num_feature_misses - first.num_feature_misses,
            )

        wait_until(lambda: sum(numbers()) == 24)
        assert numbers() == (16, 8)


def test_an_application_with_a_wrong_config_is_refused(folder):
    with pytest.raises(ConfigError, match="cannot be read"):
        vlmkit_ray.app({"config": str(folder / "absent.toml")})
    with pytest.raises(ConfigError, match="takes the argument config"):
        vlmkit_ray.app({"configuration": "vlmkit.toml"})
    (folder / "vlmkit.toml").write_text(f"[[models]]\n{MOCK}\n[[ray.models]]\nname = 'mok'")
    with pytest.raises(ConfigError, match="no model has this name"):
        vlmkit_ray.app({"config": str(folder / "vlmkit.toml")})
