"""Many requests by one call: their order, how far they are read ahead, errors and the end."""

import asyncio
import json
import threading
from collections.abc import Iterator
from itertools import count

import PIL.Image
import pytest

import vlmkit
from vlmkit.errors import EngineError, EngineFailed
from vlmkit.running.pipeline.ordered_answers import OrderedAnswers
from vlmkit.running.pipeline.ordered_tasks import MAX_AHEAD

WAIT_S = 60.0


@pytest.fixture(scope="module")
def model():
    with vlmkit.load("mock") as model:
        yield model


def script(**fields):
    return json.dumps({"mock": fields})


def texts(results):
    return [result.text for result in results]


def test_results_come_in_the_order_of_the_requests(model):
    lengths = [90, 1, 40, 2, 60, 3] * 20
    prompts = [script(text=f"{number}.", tokens=num) for number, num in enumerate(lengths)]
    expected = [(f"{number}." * 90)[:num] for number, num in enumerate(lengths)]
    assert texts(model.generate_many(prompts)) == expected


def test_a_request_is_a_prompt_a_prompt_with_images_a_conversation_or_a_request(model):
    turns = [{"role": "system", "content": "x"}, {"role": "user", "content": "hello"}]
    image = PIL.Image.new("RGB", (9, 7))
    request = model.request("a long question", max_tokens=2)
    asked = ["question", ("what?", image), ("what?", [image, image]), turns, request]
    results = list(model.generate_many(asked, max_tokens=5))
    lengths = [result.usage.completion_tokens for result in results]
    assert lengths == [5, 5, 5, 5, 2]  # a request keeps its own parameters
    assert [len(result.usage.image_tokens) for result in results] == [0, 1, 2, 0, 0]


def test_the_error_of_a_request_is_its_result_and_the_others_continue(model, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\nno more")
    asked = [
        "first",
        ("what?", [broken]),
        script(text="abc", fail_at_token=1),
        7,
        ("what?", tmp_path / "none.png"),
        "last",
    ]
    first, *failed, last = model.generate_many(asked)
    assert (first.text, last.text) == ("first", "last")
    assert [type(error).__name__ for error in failed] == [
        "ImageError",
        "EngineError",
        "RequestError",
        "MediaError",
    ]
    assert str(broken) in str(failed[0])


def test_requests_are_read_only_as_far_as_the_engine_can_use_them(model):
    num_read = 0

    def endless() -> Iterator[str]:
        nonlocal num_read
        for number in count():
            num_read += 1
            yield script(text=str(number))

    results = model.generate_many(endless())
    assert num_read == 0
    assert texts(next(results) for _ in range(100)) == [str(number) for number in range(100)]
    assert num_read <= 100 + MAX_AHEAD * 2 * model.facts.limits.max_sequences
    results.close()


def test_later_requests_run_while_the_first_has_no_answer():
    """The first is made only when the last was; that number is over what runs at once."""
    with vlmkit.load("mock", engine={"max_sequences": 4}) as model:
        num, last_is_made = 3 * 2 * 4, threading.Event()

        def make(number):
            if number == num - 1:
                last_is_made.set()
            assert number or last_is_made.wait(WAIT_S)
            return model.request(str(number))

        results = OrderedAnswers(model.runner, make, model.submit).results(range(num))
        assert texts(results) == [str(number) for number in range(num)]


def test_the_reader_gets_a_result_while_the_next_request_does_not_exist_yet(model):
    async def converse():
        answered = asyncio.Event()

        async def requests():
            yield "one"
            await answered.wait()
            yield "two"

        found = []
        async for result in model.agenerate_many(requests()):
            found.append(result.text)
            answered.set()
        return found

    assert asyncio.run(asyncio.wait_for(converse(), WAIT_S)) == ["one", "two"]


def test_the_asynchronous_form_takes_any_iterable_and_reports_errors_alike(model):
    async def collect():
        many = model.agenerate_many(["one", 7, "three"], max_tokens=3)
        return [result async for result in many]

    one, error, three = asyncio.run(collect())
    assert (one.text, three.text) == ("one", "thr")
    assert isinstance(error, vlmkit.RequestError)


def test_it_works_where_an_event_loop_runs_as_in_a_notebook(model):
    async def notebook():
        return texts(model.generate_many(["one", "two"]))

    assert asyncio.run(notebook()) == ["one", "two"]


def requests_with_a_failure():
    yield "one"
    yield "two"
    raise KeyError("no more")


def test_the_error_of_the_iterable_comes_after_the_results_of_earlier_requests(model):
    results = model.generate_many(requests_with_a_failure())
    assert [next(results).text, next(results).text] == ["one", "two"]
    with pytest.raises(KeyError, match="no more"):
        next(results)

    async def collect():
        results = model.agenerate_many(requests_with_a_failure())
        assert [(await anext(results)).text, (await anext(results)).text] == ["one", "two"]
        with pytest.raises(KeyError, match="no more"):
            await anext(results)

    asyncio.run(collect())


def test_a_full_queue_delays_requests_and_fails_none():
    with vlmkit.load("mock", scheduler={"max_waiting": 2, "max_running": 1}) as model:
        prompts = [str(number) for number in range(60)]
        assert texts(model.generate_many(prompts)) == prompts


ENDLESS = script(text="x", tokens=900, latency_s=0.2)  # takes three minutes


def test_closing_the_iterator_aborts_the_requests_in_progress():
    with vlmkit.load("mock") as model:
        results = model.generate_many(["first", *[ENDLESS] * 40])
        assert next(results).text == "first"
        results.close()

        async def one():
            results = model.agenerate_many(["first", *[ENDLESS] * 40])
            assert (await anext(results)).text == "first"
            await results.aclose()

        asyncio.run(one())
        assert model.drain(WAIT_S)


def test_an_invalid_parameter_is_an_error_before_any_request_is_read(model):
    for many in (model.generate_many, model.agenerate_many):
        with pytest.raises(vlmkit.RequestError, match="no sampling parameter 'max_tokenz'"):
            many(requests_with_a_failure(), max_tokenz=3)


def test_an_engine_that_failed_for_good_ends_all():
    with vlmkit.load("mock") as model:
        asked = ["fine", script(text="abc", crash_at_token=1), "later"]
        results = model.generate_many(asked)
        with pytest.raises(EngineFailed):
            list(results)


def test_closing_the_model_ends_all():
    with vlmkit.load("mock") as model:
        results = model.generate_many(count_texts())
        assert next(results).text == "0"
        model.close()
        with pytest.raises(EngineError, match="is closed"):
            list(results)
        with pytest.raises(EngineError, match="is closed"):
            model.generate_many(["x"])


def count_texts():
    return (str(number) for number in count())
