"""Real workers that answer by the services of vLLM, beside the same model in this process."""

import signal
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import vlmkit
from mock_model import script, wait_until
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams
from vlmkit_grpc.protocol.vllm_pb2 import (
    AbortRequest,
    CandidateTokens,
    DecodingParameters,
    FinishInfo,
    GenerateRequest,
    GetKvEventSourcesRequest,
    GetKvEventSourcesResponse,
    GetModelInfoRequest,
    GetServerInfoRequest,
    KVCacheParameters,
    RandomSampling,
    ResponseOptions,
    StoppingCriteria,
    TokenIds,
)
from vlmkit_grpc.protocol.vllm_pb2_grpc import ControlStub, InferenceStub
from workers import worker

pytestmark = pytest.mark.posix

SECRET = "a-secret-of-32-letters-and-digits"
IDS = tuple(range(40, 60))
USER = 3  # a special token of the demo
ENDLESS = script(text="x", tokens=20_000, latency_s=0.01)


@pytest.fixture(scope="module")
def demo():
    with worker("--vllm", model="demo") as process:
        yield process


@pytest.fixture(scope="module")
def local():
    with vlmkit.load("demo") as model:
        yield model.runner


@pytest.fixture(scope="module")
def mock():
    with worker("--vllm", "--set", "worker.stall_timeout_s=1") as process:
        yield process
        wait_until(lambda: process.is_idle)


@pytest.fixture
def inference(demo):
    with grpc.insecure_channel(demo.address) as calls:
        yield InferenceStub(calls)


@pytest.fixture
def scripted(mock):
    with grpc.insecure_channel(mock.address) as calls:
        yield InferenceStub(calls)


def asked(ids=IDS, *, max_new_tokens=12, **fields):
    given = {"response": ResponseOptions(output_token_ids=True)} | fields
    stopping = given.pop("stopping", StoppingCriteria(max_new_tokens=max_new_tokens))
    return GenerateRequest(token_ids=TokenIds(ids=ids), stopping=stopping, **given)


def joined(messages, num=1):
    """Return the tokens, the texts and the ends of the answers of a stream."""
    first, *rest = messages
    assert first.prompt_info.num_prompt_tokens
    assert not any(each.HasField("prompt_info") for each in rest)
    ids, texts, ends = [[] for _ in range(num)], [""] * num, [None] * num
    for output in (each.outputs for each in rest):
        assert output.num_tokens == len(output.token_ids)
        ids[output.index] += output.token_ids
        texts[output.index] += output.text
        if output.HasField("finish_info"):
            ends[output.index] = output.finish_info
    return ids, texts, ends


def error_of(call):
    with pytest.raises(grpc.RpcError) as found:
        call()
    return found.value.code(), found.value.details()


# The answers.

SAMPLINGS = {
    "greedy": ({}, {}),
    "hot": (
        {"temperature": 0.7, "sampling": RandomSampling(seed=5, top_p=0.9, top_k=40, min_p=0.01)},
        {"temperature": 0.7, "seed": 5, "top_p": 0.9, "top_k": 40, "min_p": 0.01},
    ),
    "penalised": (
        {
            "temperature": 1.1,
            "sampling": RandomSampling(seed=-3),
            "decoding": DecodingParameters(
                presence_penalty=0.3,
                frequency_penalty=0.7,
                repetition_penalty=1.3,
                logit_bias={100: 2.5, 101: -3},
            ),
        },
        {
            "temperature": 1.1,
            "seed": -3,
            "presence_penalty": 0.3,
            "frequency_penalty": 0.7,
            "repetition_penalty": 1.3,
            "logit_bias": {100: 2.5, 101: -3.0},
        },
    ),
    "few tokens": (
        {
            "temperature": 1.5,
            "sampling": RandomSampling(seed=1),
            "decoding": DecodingParameters(allowed_token_ids=[50, 51, 52, 53]),
        },
        {"temperature": 1.5, "seed": 1, "allowed_token_ids": (50, 51, 52, 53)},
    ),
}


@pytest.mark.parametrize(("fields", "params"), SAMPLINGS.values(), ids=SAMPLINGS.keys())
def test_tokens_equal_those_of_the_model_in_one_process(inference, local, fields, params):
    for start in (40, 300, 700):
        ids = tuple(range(start, start + 30))
        wanted = SamplingParams(max_tokens=24, **params)
        choice = local.submit(Request(token_ids=ids, params=wanted)).result().choices[0]
        message = asked(ids, max_new_tokens=24, **fields)
        whole = inference.Generate(message).outputs
        assert list(whole.token_ids) == choice.token_ids
        assert (whole.text, whole.num_tokens) == (choice.text, len(choice.token_ids))
        (streamed,), (text,), (end,) = joined(inference.GenerateStream(message))
        assert (streamed, text) == (choice.token_ids, choice.text)
        assert end == whole.finish_info
        assert end.num_output_tokens == len(choice.token_ids)


def test_several_answers_are_streamed_with_their_numbers(inference, local):
    sampling = RandomSampling(num_sequences=3, seed=9)
    params = SamplingParams(max_tokens=12, temperature=1.2, n=3, seed=9)
    wanted = local.submit(Request(token_ids=IDS, params=params)).result().choices
    message = asked(temperature=1.2, sampling=sampling)
    ids, texts, ends = joined(inference.GenerateStream(message), num=3)
    assert ids == [choice.token_ids for choice in wanted]
    assert texts == [choice.text for choice in wanted]
    assert all(ends)
    code, text = error_of(lambda: inference.Generate(message))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "sampling.num_sequences" in text


def test_log_probabilities_and_candidates_are_those_of_the_model(inference, local):
    params = SamplingParams(
        max_tokens=8, temperature=1.4, seed=2, logprobs=True, top_logprobs=3, ignore_eos=True
    )
    wanted = local.submit(Request(token_ids=IDS, params=params)).result().choices[0].samples
    response = ResponseOptions(
        output_token_ids=True, output_logprobs=True, output_candidates=CandidateTokens(top_n=3)
    )
    output = inference.Generate(
        asked(
            temperature=1.4,
            sampling=RandomSampling(seed=2),
            response=response,
            stopping=StoppingCriteria(max_new_tokens=8, ignore_eos=True),
        )
    ).outputs
    assert list(output.token_ids) == [sample.token_id for sample in wanted]
    assert list(output.logprobs) == pytest.approx([s.logprob for s in wanted], abs=1e-4)
    for sample, rank, found in zip(wanted, output.ranks, output.candidate_tokens, strict=True):
        top = [entry.token_id for entry in sample.top]
        assert rank == (top.index(sample.token_id) + 1 if sample.token_id in top else 0)
        assert [(each.id, each.rank) for each in found.tokens] == [
            (token_id, place)
            for place, token_id in enumerate(top, 1)
            if token_id != sample.token_id
        ]
    assert (
        0
        not in inference.Generate(
            asked(response=ResponseOptions(output_logprobs=True))
        ).outputs.ranks
    )


def test_a_prompt_of_text_is_answered_and_its_tokens_are_returned_if_asked(inference, local):
    message = GenerateRequest(
        text="What is red?",
        stopping=StoppingCriteria(max_new_tokens=5),
        response=ResponseOptions(prompt_token_ids=True, output_text=False),
    )
    wanted = local.submit(
        Request(text="What is red?", params=SamplingParams(max_tokens=5))
    ).result()
    found = inference.Generate(message)
    assert tuple(found.prompt_info.token_ids) == wanted.prompt_token_ids
    assert found.prompt_info.num_prompt_tokens == len(wanted.prompt_token_ids)
    assert (found.outputs.text, list(found.outputs.token_ids)) == ("", [])
    assert found.outputs.num_tokens == len(wanted.choices[0].token_ids)


def test_a_prompt_is_cut_to_its_last_tokens(inference):
    cut = inference.Generate(asked(range(10, 60), truncate_prompt_tokens=20))
    assert cut == inference.Generate(asked(range(40, 60)))


@pytest.mark.parametrize("kv", [{"cache_salt": "one"}, {"bypass_prefix_cache": True}])
def test_a_salted_prompt_has_the_same_answer(inference, kv):
    salted = asked(kv=KVCacheParameters(**kv), priority=7, session_id="s")
    assert inference.Generate(salted).outputs == inference.Generate(asked()).outputs


# The ends of answers.


def test_an_answer_says_what_ended_it(inference):
    plain = inference.Generate(asked(stopping=StoppingCriteria())).outputs
    assert plain.finish_info.finish_reason == FinishInfo.STOP
    assert plain.finish_info.eos_token_id == plain.token_ids[-1]
    second = plain.token_ids[1]
    ended = asked(stopping=StoppingCriteria(stop_token_ids=[second]))
    output = inference.Generate(ended).outputs
    assert list(output.token_ids) == list(plain.token_ids[:2])
    assert output.finish_info.stop_token_id == second
    short = inference.Generate(asked(max_new_tokens=1)).outputs
    assert (short.finish_info.finish_reason, short.num_tokens) == (FinishInfo.LENGTH, 1)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_stop_string_ends_an_answer_and_its_text(scripted, keeps):
    stopping = StoppingCriteria(
        max_new_tokens=64, stop_strings=["no", "END"], include_stop_strings=keeps
    )
    message = GenerateRequest(text="one two END three", stopping=stopping)
    output = scripted.Generate(message).outputs
    assert output.text == "one two " + "END" * keeps
    assert output.finish_info.stop_string == "END"
    text = "".join(each.outputs.text for each in scripted.GenerateStream(message))
    assert text == output.text


def test_ends_are_ignored_and_postponed(inference):
    endless = StoppingCriteria(max_new_tokens=20, ignore_eos=True)
    assert inference.Generate(asked(stopping=endless)).outputs.num_tokens == 20
    late = StoppingCriteria(max_new_tokens=20, min_new_tokens=10)
    assert inference.Generate(asked(stopping=late)).outputs.num_tokens >= 10


@pytest.mark.parametrize("skips", [True, False])
def test_a_special_token_is_in_the_text_if_asked(inference, skips):
    output = inference.Generate(
        asked(
            max_new_tokens=2,
            decoding=DecodingParameters(allowed_token_ids=[USER]),
            response=ResponseOptions(skip_special_tokens=skips, output_token_ids=True),
        )
    ).outputs
    assert list(output.token_ids) == [USER, USER]
    assert output.text == ("" if skips else "<|user|>" * 2)


FORMS = {
    "json": (
        {"json": '{"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}'},
        '{"a": 1}',
    ),
    "regex": ({"regex": "(ab){3}"}, "ababab"),
    "choice": ({"choice": DecodingParameters.StringChoices(choices=["yes", "no"])}, "no"),
    "grammar": ({"grammar": 'start: "x" "y"'}, "xy"),
    "json_object": ({"json_object": True}, "{}"),
}


@pytest.mark.parametrize(("form", "text"), FORMS.values(), ids=FORMS.keys())
def test_an_answer_matches_its_form(scripted, form, text):
    message = GenerateRequest(
        text=text,
        decoding=DecodingParameters(**form),
        stopping=StoppingCriteria(max_new_tokens=40),
    )
    assert scripted.Generate(message).outputs.text.replace(" ", "") == text.replace(" ", "")


# What is refused.


def filled(message, content):
    message.MergeFromString(content)
    return message


WRONG = {
    "media": (filled(asked(), b"\x72\x00"), "UNIMPLEMENTED"),
    "lora_name": (filled(asked(), b"\x7a\x01a"), "INVALID_ARGUMENT"),
    "the field 99 of GenerateRequest": (filled(asked(), b"\x98\x06\x01"), "INVALID_ARGUMENT"),
    "decoding.structural_tag": (
        asked(decoding=DecodingParameters.FromString(b"\x5a\x01a")),
        "INVALID_ARGUMENT",
    ),
    "response.prompt_logprobs": (
        asked(response=ResponseOptions.FromString(b"\x10\x01")),
        "INVALID_ARGUMENT",
    ),
    "response.output_candidates.token_ids": (
        asked(
            response=ResponseOptions(
                output_logprobs=True, output_candidates=CandidateTokens.FromString(b"\x12\x00")
            )
        ),
        "INVALID_ARGUMENT",
    ),
    "kv.kv_transfer_params": (
        asked(kv=KVCacheParameters.FromString(b"\x1a\x00")),
        "INVALID_ARGUMENT",
    ),
    "sampling.the field 9 of RandomSampling": (
        asked(sampling=RandomSampling.FromString(b"\x48\x01")),
        "INVALID_ARGUMENT",
    ),
    "prompt: has neither": (GenerateRequest(), "INVALID_ARGUMENT"),
    "prompt: the prompt has no tokens": (asked(()), "INVALID_ARGUMENT"),
    "token_ids.ids": (asked((5, 972)), "INVALID_ARGUMENT"),
    "maximum context length": (asked(range(900)), "INVALID_ARGUMENT"),
    "model": (asked(model="other"), "NOT_FOUND"),
    "temperature": (asked(temperature=float("nan")), "INVALID_ARGUMENT"),
    "temperature: Expected `float` <= 2.0": (asked(temperature=2.5), "INVALID_ARGUMENT"),
    "sampling.top_p": (asked(sampling=RandomSampling(top_p=1.5)), "INVALID_ARGUMENT"),
    "sampling.top_k": (asked(sampling=RandomSampling(top_k=2**32 - 1)), "INVALID_ARGUMENT"),
    "decoding.logit_bias": (
        asked(decoding=DecodingParameters(logit_bias={2**31: 1})),
        "INVALID_ARGUMENT",
    ),
    "decoding.allowed_token_ids": (
        asked(decoding=DecodingParameters(allowed_token_ids=[972])),
        "INVALID_ARGUMENT",
    ),
    "decoding.structured_output": (
        asked(decoding=DecodingParameters(json="{")),
        "INVALID_ARGUMENT",
    ),
    "stopping.max_new_tokens": (
        asked(stopping=StoppingCriteria(max_new_tokens=2**32 - 1)),
        "INVALID_ARGUMENT",
    ),
    "stopping.min_new_tokens": (
        asked(stopping=StoppingCriteria(max_new_tokens=2, min_new_tokens=3)),
        "INVALID_ARGUMENT",
    ),
    "stopping.stop_token_ids": (
        asked(stopping=StoppingCriteria(stop_token_ids=[1 << 30])),
        "INVALID_ARGUMENT",
    ),
    "stopping.stop_strings": (
        asked(stopping=StoppingCriteria(stop_strings=["x"] * 17)),
        "INVALID_ARGUMENT",
    ),
    "response.output_candidates: needs": (
        asked(response=ResponseOptions(output_candidates=CandidateTokens(top_n=1))),
        "INVALID_ARGUMENT",
    ),
    "response.output_candidates.top_n": (
        asked(
            response=ResponseOptions(
                output_logprobs=True, output_candidates=CandidateTokens(top_n=21)
            )
        ),
        "INVALID_ARGUMENT",
    ),
    "priority": (asked(priority=-1), "INVALID_ARGUMENT"),
    "kv.cache_salt": (asked(kv=KVCacheParameters(cache_salt="x" * 513)), "INVALID_ARGUMENT"),
    "request_id": (asked(request_id="x" * 257), "INVALID_ARGUMENT"),
    "truncate_prompt_tokens": (
        GenerateRequest(text="x", truncate_prompt_tokens=1),
        "INVALID_ARGUMENT",
    ),
}


@pytest.mark.parametrize("field", WRONG)
def test_what_is_not_honoured_is_refused_by_name(inference, field):
    message, code = WRONG[field]
    if field == "maximum context length":
        message.token_ids.ids.extend([5] * 200)
    for call in (inference.Generate, lambda each: list(inference.GenerateStream(each))):
        found, text = error_of(lambda call=call: call(message))
        assert found.name == code
        assert field in text


def test_a_request_that_is_too_large_is_refused_and_long_prompts_are_not(inference):
    long = inference.Generate(asked(tuple(range(40, 960)), max_new_tokens=2**31 - 1))
    assert long.prompt_info.num_prompt_tokens == 920
    assert long.outputs.num_tokens <= 104
    code, _ = error_of(lambda: inference.Generate(asked([5] * 5000)))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    code, _ = error_of(lambda: inference.Generate(asked([5] * 4_000_000)))
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_max_new_tokens_over_the_context_is_lowered_to_it(inference):
    stopping = StoppingCriteria(max_new_tokens=100_000, ignore_eos=True)
    output = inference.Generate(asked(range(10, 960), stopping=stopping)).outputs
    assert output.finish_info.finish_reason == FinishInfo.LENGTH
    assert output.num_tokens == 1024 - 950


# The ends of calls.


def test_abort_ends_the_requests_that_it_names_and_no_others(mock, scripted):
    with grpc.insecure_channel(mock.address) as calls, ThreadPoolExecutor(1) as pool:
        control = ControlStub(calls)
        texts = {name: GenerateRequest(text=ENDLESS, request_id=name) for name in ("a", "b", "")}
        streams = {name: scripted.GenerateStream(message) for name, message in texts.items()}
        for stream in streams.values():
            next(stream), next(stream)
        whole = pool.submit(scripted.Generate, GenerateRequest(text=ENDLESS, request_id="a"))
        wait_until(lambda: num_running(mock) == 4)
        control.Abort(AbortRequest(request_ids=["a", "", "unknown"]))
        *_, last = streams["a"]
        assert last.outputs.finish_info.finish_reason == FinishInfo.ABORTED
        found = whole.result(60).outputs.finish_info.finish_reason
        assert found == FinishInfo.ABORTED
        assert next(streams["b"]).outputs.num_tokens
        assert next(streams[""]).outputs.num_tokens
        streams["b"].cancel()
        streams[""].cancel()
    wait_until(lambda: mock.is_idle)


def num_running(process):
    with vlmkit.load(process.reference, runner={"use": "grpc"}) as model:
        wait_until(lambda: model.runner._state.stats.counters)
        return model.runner.stats().num_running


def test_a_caller_that_disappears_or_is_late_leaves_nothing(mock, scripted):
    message = GenerateRequest(text=ENDLESS)
    for call in (scripted.Generate, lambda m, timeout: list(scripted.GenerateStream(m, timeout))):
        code, _ = error_of(lambda call=call: call(message, timeout=0.5))
        assert code == grpc.StatusCode.DEADLINE_EXCEEDED
    whole = scripted.Generate.future(message)
    stream = scripted.GenerateStream(message)
    next(stream)
    whole.cancel()
    stream.cancel()
    with grpc.insecure_channel(mock.address) as calls:
        next(InferenceStub(calls).GenerateStream(message))
    wait_until(lambda: mock.is_idle)


def test_a_caller_that_does_not_read_is_left(mock):
    options = (("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0))
    response = ResponseOptions(
        output_logprobs=True, output_candidates=CandidateTokens(top_n=20), output_token_ids=True
    )
    text = script(text="abcdefgh" * 2000, tokens=20_000)
    message = GenerateRequest(text=text, response=response)
    before = mock.num_sampled
    with grpc.insecure_channel(mock.address, options) as calls:
        stream = InferenceStub(calls).GenerateStream(message)
        wait_until(lambda: mock.num_sampled > before)  # it may be idle again before it is seen
        wait_until(lambda: mock.is_idle)  # although nothing was read
        code, _ = error_of(lambda: list(stream))
        assert code == grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_signal_drains_the_worker_and_running_answers_end():
    with worker("--vllm") as process, grpc.insecure_channel(process.address) as calls:
        stub = InferenceStub(calls)
        slow = GenerateRequest(text=script(text="x", tokens=40, latency_s=0.05))
        stream = stub.GenerateStream(slow)
        next(stream), next(stream)
        process.signal(signal.SIGTERM)
        health = health_pb2_grpc.HealthStub(calls)
        wait_until(lambda: status_of(health, "") != health_pb2.HealthCheckResponse.SERVING)
        code, text = error_of(lambda: stub.Generate(slow))
        assert code == grpc.StatusCode.UNAVAILABLE, text
        *_, last = stream
        assert last.outputs.finish_info.finish_reason in (FinishInfo.STOP, FinishInfo.LENGTH)
        assert process.ended() == 0


def status_of(health, service):
    return health.Check(health_pb2.HealthCheckRequest(service=service), timeout=60).status


def test_a_request_that_outlasts_the_drain_ends_with_an_error():
    setting = ("--set", "worker.drain_timeout_s=0.2")
    with worker("--vllm", *setting) as process, grpc.insecure_channel(process.address) as calls:
        stream = InferenceStub(calls).GenerateStream(GenerateRequest(text=ENDLESS))
        next(stream), next(stream)
        process.signal(signal.SIGTERM)
        code, _ = error_of(lambda: list(stream))
        assert code == grpc.StatusCode.UNAVAILABLE
        assert process.ended() == 0


# Who is answered.


def test_the_services_are_off_unless_the_operator_asks_for_them():
    with worker() as process, grpc.insecure_channel(process.address) as calls:
        code, _ = error_of(lambda: InferenceStub(calls).Generate(GenerateRequest(text="x")))
        assert code == grpc.StatusCode.UNIMPLEMENTED
        code, _ = error_of(lambda: ControlStub(calls).GetModelInfo(GetModelInfoRequest()))
        assert code == grpc.StatusCode.UNIMPLEMENTED


def test_the_secret_is_asked_for_and_health_is_not_secret():
    given = ("--vllm", "--set", f"worker.secret={SECRET}")
    with worker(*given) as process, grpc.insecure_channel(process.address) as calls:
        stub, control = InferenceStub(calls), ControlStub(calls)
        text = GenerateRequest(text="hello")
        for call in (
            lambda: stub.Generate(text),
            lambda: list(stub.GenerateStream(text)),
            lambda: control.GetServerInfo(GetServerInfoRequest()),
        ):
            assert error_of(call)[0] == grpc.StatusCode.UNAUTHENTICATED
        metadata = (("authorization", f"Bearer {SECRET}"),)
        assert stub.Generate(text, metadata=metadata).outputs.text == "hello"
        health = health_pb2_grpc.HealthStub(calls)
        for service in ("", "vllm.Inference", "vllm.Control", "vlmkit.worker.v1.Worker"):
            assert status_of(health, service) == health_pb2.HealthCheckResponse.SERVING


def test_a_worker_states_its_model_and_limits(demo, local):
    with grpc.insecure_channel(demo.address) as calls:
        control = ControlStub(calls)
        model = control.GetModelInfo(GetModelInfoRequest())
        server = control.GetServerInfo(GetServerInfoRequest())
        sources = control.GetKvEventSources(GetKvEventSourcesRequest())
    assert (model.model_id, model.served_model_name) == ("demo", "demo")
    assert model.supports_token_ids_input
    assert not model.supports_multimodal
    assert server.max_model_len == local.facts.limits.max_sequence_tokens
    assert server.kv_block_size == 16
    assert server.parallelism.world_size == 1
    assert sources == GetKvEventSourcesResponse()


def test_a_gateway_and_a_router_use_one_worker_at_once(mock, scripted):
    with vlmkit.load(mock.reference, runner={"use": "grpc"}) as model:
        stream = scripted.GenerateStream(GenerateRequest(text=ENDLESS))
        next(stream)
        assert model.generate("hello").text == "hello"
        stream.cancel()
    wait_until(lambda: mock.is_idle)
