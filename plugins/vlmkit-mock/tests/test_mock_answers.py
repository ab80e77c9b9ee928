"""Answers of the mock through a complete pipeline."""

from collections.abc import Iterator

import pytest

from vlmkit.errors import EngineError, RequestError
from vlmkit.interfaces.prompt import Prompt
from vlmkit.model import Model
from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit.types.message import Message, TextPart
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_mock.answer import answer_to
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEncoderSettings, MockEngineSettings, Reply, Script
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder
from vlmkit_testing import picture


def assemble(
    engine: MockEngineSettings | None = None, encoder: MockEncoderSettings | None = None
) -> Model:
    return Model(
        Pipeline(
            tokenizer=MockTokenizer(),
            media_encoder=MockVisionEncoder(encoder),
            engine=MockEngine(engine),
            name="mock",
        )
    )


@pytest.fixture
def model() -> Iterator[Model]:
    with assemble() as loaded:
        yield loaded


def test_the_answer_repeats_the_last_user_text(model: Model) -> None:
    messages = [
        Message.of("system", "Be brief."),
        Message.of("user", "first"),
        Message.of("assistant", "second"),
        Message.of("user", "third 👍"),
    ]
    assert model.generate(messages).text == "third 👍"


def called(result: str, *, call_id: str | None = "call-1") -> list[Message]:
    return [
        Message.of("user", '{"mock": {"text": "I call."}}'),
        Message("assistant", (ToolCallPart("call-1", "look", "{}"),)),
        Message("tool", (TextPart(result),), call_id),
    ]


@pytest.mark.parametrize("call_id", ["call-1", '"', None])
def test_the_answer_repeats_the_last_tool_result(model: Model, call_id: str | None) -> None:
    assert model.generate(called("sunny", call_id=call_id)).text == "sunny"
    assert model.generate(called('{"mock": {"text": "so"}}', call_id=call_id)).text == "so"
    assert model.generate(called('"sun', call_id=call_id)).text == '"sun'
    conversation = [*called("sunny", call_id=call_id), Message.of("user", "and now?")]
    assert model.generate(conversation).text == "and now?"


def test_the_first_matching_reply_applies() -> None:
    replies = Reply(to="weather", text="I look."), Reply(to="the", text="what?", tokens=7)
    with assemble(MockEngineSettings(replies=replies, text="else")) as model:
        assert model.generate("How is the weather?").text == "I look."
        assert model.generate("Who is the king?").text == "what?wh"
        assert model.generate("Hello!").text == "else"
        assert model.generate('{"mock": {"reasoning": "the"}}').text == "else"
        assert model.generate(called("weather: sunny")).text == "I look."


def test_the_answer_names_the_size_and_digest_of_every_image(model: Model) -> None:
    images = [picture(48, 64, seed=1), picture(30, 20, seed=2)]
    digests = [image.digest.hex()[:16] for image in images]
    assert model.generate("What?", images=images).text == (
        f"image 1: 64x48 sha256:{digests[0]}\nimage 2: 20x30 sha256:{digests[1]}\nWhat?"
    )


def test_a_directive_scripts_the_text(model: Model) -> None:
    assert model.generate('{"mock": {"text": "grüß dich"}}').text == "grüß dich"


def test_a_directive_may_stand_beside_an_image(model: Model) -> None:
    assert model.generate('{"mock": {"text": "seen"}}', images=[picture()]).text == "seen"


@pytest.mark.parametrize(("tokens", "text"), [(0, ""), (2, "ab"), (7, "abcabca")])
def test_a_directive_sets_the_number_of_tokens(model: Model, tokens: int, text: str) -> None:
    said = f'{{"mock": {{"text": "abc", "tokens": {tokens}}}}}'
    assert model.generate(said).text == text


def test_an_empty_text_ends_at_once(model: Model) -> None:
    answer = model.generate('{"mock": {"text": ""}}')
    assert (answer.text, answer.choices[0].finish_reason) == ("", "stop")


@pytest.mark.parametrize(
    "directive",
    [
        '{"mock": {"txt": "secret"}}',
        '{"mock": {"tokens": -1}}',
        '{"mock": {"text": "a"}, "more": 1}',
        '{"mock": 7}',
        '{"mock": {"text": "secret"',
    ],
)
def test_a_wrong_directive_is_refused_without_repeating_it(model: Model, directive: str) -> None:
    with pytest.raises(RequestError) as error:
        model.generate(directive)
    assert str(error.value) == "the mock directive is not valid"
    assert error.value.hint == (
        "a JSON object of text, reasoning, calls, tokens, prefill_latency_s, latency_s, "
        "fail_at_token, crash_at_token"
    )


def test_text_that_only_resembles_a_directive_is_text(model: Model) -> None:
    assert model.generate('say {"mock": {}}').text == 'say {"mock": {}}'


def test_only_the_scripted_answer_fails_at_its_token(model: Model) -> None:
    streams = [
        model.submit(model.request(f'{{"mock": {{"text": "abcdef"{rest}}}}}'))
        for rest in ("", ', "fail_at_token": 3', "")
    ]
    texts = []
    for stream in streams:
        text = ""
        try:
            for chunk in stream:
                text += chunk.text
        except EngineError:
            text += "!"
        texts.append(text)
    assert texts == ["abcdef", "abc!", "abcdef"]
    assert model.generate("still here").text == "still here"


def test_an_answer_may_fail_before_its_first_token(model: Model) -> None:
    with pytest.raises(EngineError, match="the mock was told to fail at token 0"):
        model.generate('{"mock": {"fail_at_token": 0}}')


def test_a_crash_ends_this_answer_and_every_later_one(model: Model) -> None:
    with pytest.raises(EngineError):
        model.generate('{"mock": {"text": "abc", "crash_at_token": 1}}')
    with pytest.raises(EngineError):
        model.generate("hello")


def test_the_script_of_the_settings_applies_without_a_directive() -> None:
    with assemble(MockEngineSettings(text="fixed", tokens=6)) as model:
        assert model.generate("hello").text == "fixedf"
        assert model.generate('{"mock": {"text": "mine"}}').text == "minemi"


def test_an_image_of_the_chosen_size_makes_the_encoder_fail() -> None:
    with assemble(encoder=MockEncoderSettings(fail_size=(30, 20))) as model:
        with pytest.raises(EngineError, match="the mock was told to fail on size"):
            model.generate("hello", images=[picture(30, 20)])
        assert model.generate("hello", images=[picture(20, 30)]).text.endswith("hello")


def test_an_answer_repeats_if_its_end_is_not_allowed(model: Model) -> None:
    answer = model.generate('{"mock": {"text": "abc"}}', min_tokens=8, max_tokens=20)
    assert answer.text == "abcabcab"


def test_log_probabilities_are_finite_and_the_script_is_nearly_certain(model: Model) -> None:
    choice = model.generate("abc", logprobs=True, top_logprobs=5, temperature=2.0).choices[0]
    assert choice.text == "abc"
    assert all(s.logprob is not None and -0.01 < s.logprob <= 0 for s in choice.samples)
    assert all(top.logprob > -40 for s in choice.samples for top in s.top)


def test_a_tool_is_part_of_the_prompt() -> None:
    tokenizer, messages = MockTokenizer(), [Message.of("user", "hello")]
    plain = tokenizer.prompt(messages)
    with_tool = tokenizer.prompt(messages, tools=[{"name": "f"}])
    assert len(with_tool) > len(plain)
    assert with_tool.token_ids[-7:] == plain.token_ids[-7:]


def test_a_prompt_without_a_user_or_tool_text_gets_an_empty_answer() -> None:
    answer = answer_to(Prompt((1, 2, 3)), Script())
    assert answer.num_tokens == 0
