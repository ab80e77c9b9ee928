"""What the reader of an answer must do with tool calls, in any format that a prompt can name."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from vlmkit.errors import RequestError
from vlmkit.interfaces.chat_format import CallFormat, ChannelFormat, JsonCall, Mark, NamedCall
from vlmkit.interfaces.prompt import Prompt
from vlmkit.types.delta import Delta, ToolCallDelta, reasoning_of, text_of, tool_calls_of
from vlmkit_testing.contracts.tokenizer_subject import TokenizerSubject, read, tool

Call = tuple[str, str]
"""The name of a tool, and its argument ``what``."""

CALLS: tuple[Call, ...] = (
    ("find", "a fox"),
    ("send", 'a "red" {fox}, [or] \\ two: żółć 日本 👍'),
    ("find", ""),
)
SAID = "so it is"


class TokenizerCallsContract(TokenizerSubject):
    """Calls of an answer are separated from its text and its reasoning, each by itself."""

    def test_the_format_of_calls_is_stated(self) -> None:
        """With each prompt that has tools; nothing could read a call otherwise."""
        if not self.names_calls:
            pytest.skip("set names_calls if the format of calls is known")
        for tools in ([tool("find")], [tool("send"), tool("find")]):
            for messages in (self._conversation(), [self._asked("and so?")]):
                assert self.make().prompt(messages, tools=tools).calling is not None

    def test_a_tool_call_is_separated_from_text(self) -> None:
        """In the prompt's call format; without tools and in plain text it is text."""
        prompt, tokenizer = self._with_tools(), self.make()
        for call in CALLS:
            written = self._written(prompt, [call])
            deltas = self._deltas(prompt, written)
            assert _calls_in(deltas) == [call]
            assert not text_of(deltas).strip()
            for other in (self._prompt(self._conversation()), replace(prompt, is_plain=True)):
                deltas = [d for found in read(tokenizer.reader(other), written) for d in found]
                assert not tool_calls_of(deltas)

    def test_each_of_several_calls_has_its_own_index_and_id(self) -> None:
        """The first delta of a call names both, and the tool; later ones have arguments alone."""
        prompt = self._with_tools()
        form = prompt.calling.format if prompt.calling else None
        if isinstance(form, ChannelFormat):
            pytest.skip("an answer in channels ends with its first call")
        deltas = self._deltas(prompt, self._written(prompt, CALLS))
        assert _calls_in(deltas) == list(CALLS)
        calls = [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
        firsts = [calls[0], *(b for a, b in pairwise(calls) if a.index != b.index)]
        assert [first.index for first in firsts] == list(range(len(CALLS)))
        assert len({first.id for first in firsts} - {""}) == len(CALLS)
        assert sum(bool(each.id) for each in calls) == len(CALLS)
        assert sum(bool(each.name) for each in calls) == len(CALLS)

    def test_ids_of_calls_differ_between_answers(self) -> None:
        """A conversation may have the calls of both."""
        prompt = self._with_tools()
        written = self._written(prompt, CALLS[:1])
        (one,), (other,) = (tool_calls_of(self._deltas(prompt, written)) for _ in range(2))
        assert one.id
        assert one.id != other.id

    def test_text_and_reasoning_before_a_call_stay(self) -> None:
        """Each in its own deltas."""
        prompt, encode = self._with_tools(), self.make().encode
        assert prompt.calling is not None
        form = prompt.calling.format
        if isinstance(form, ChannelFormat):
            said, thought = self._in_channel(form, form.said, SAID), "why not"
            start = self._in_channel(form, form.reasoning, thought)
        else:
            marks = self.reasoning_marks()
            thought = "why not" if marks and not prompt.opens_reasoning else ""
            start = [*marks[0], *encode(thought), *marks[1]] if marks and thought else []
            said = encode(SAID) if form.open.text else []
        deltas = self._deltas(prompt, [*start, *said, *self._written(prompt, CALLS[:1])])
        assert _calls_in(deltas) == list(CALLS[:1])
        assert text_of(deltas).strip() == (SAID if said else "")
        assert reasoning_of(deltas).strip() == thought

    def test_calls_are_read_if_special_tokens_are_shown(self) -> None:
        """And reasoning: these delimiters are no part of the text on any request."""
        prompt, tokenizer = self._with_tools(), self.make()
        if "skip_special_tokens" not in tokenizer.honours:
            pytest.skip("this tokenizer does not honour skip_special_tokens")
        reader = tokenizer.reader(prompt, shows_special=True)
        written = self._written(prompt, CALLS[:1])
        assert _calls_in(d for found in read(reader, written) for d in found) == list(CALLS[:1])

    def test_a_reader_follows_its_own_prompt(self) -> None:
        """Whatever prompts were built after it, for other requests."""
        tokenizer, messages = self.make(), self._conversation()
        written = self._written(self._with_tools(), CALLS[:1])
        for own, newest in (([tool()], None), (None, [tool()])):
            prompt = tokenizer.prompt(messages, tools=own)
            tokenizer.prompt(messages, tools=newest)
            deltas = [delta for found in read(tokenizer.reader(prompt), written) for delta in found]
            assert bool(tool_calls_of(deltas)) == (own is not None)

    @pytest.mark.parametrize(
        "said", ["so it is ", "so it is\n\n", "so\n it is", "\n so it is", " ", "\n\n", " \n\t "]
    )
    def test_an_answer_that_calls_nothing_is_its_text(self, said: str) -> None:
        """White space at its end included: only that around a call is dropped."""
        prompt, tokenizer = self._with_tools(), self.make()
        if prompt.channels is not None:
            pytest.skip("this model has channels for its text")
        token_ids = tokenizer.encode(said)
        answer = "".join(map(text_of, read(tokenizer.reader(prompt), token_ids)))
        assert answer == tokenizer.decode(token_ids)

    # Helpers

    def _with_tools(self) -> Prompt:
        try:
            prompt = self.make().prompt(self._conversation(), tools=[tool("find"), tool("send")])
        except RequestError:
            pytest.skip("this model takes no tools")
        if prompt.calling is None:
            pytest.skip("it is not known how this model writes calls")
        return prompt

    def _deltas(self, prompt: Prompt, token_ids: Sequence[int]) -> list[Delta]:
        reader = self.make().reader(prompt)
        return [delta for found in read(reader, token_ids) for delta in found]

    def _written(self, prompt: Prompt, calls: Sequence[Call]) -> list[int]:
        """Return the tokens of some calls."""
        form = prompt.calling.format if prompt.calling else None
        if isinstance(form, ChannelFormat):
            ((name, what),) = calls
            head = f" {form.recipient.strip()}{form.namespace}{name}"
            return self._in_channel(form, f"{form.calls}{head}", _json({"what": what}), form.call)
        assert isinstance(form, CallFormat)
        texts = [_text_of_call(form, *call) for call in calls]
        parts: list[Mark | str]
        if form.is_list:
            listed = ", ".join(texts)
            parts = [form.open, f"{form.before}[{listed}]{form.after}", form.close]
        else:
            parts = []
            for text in texts:
                parts += [form.between] if parts else []
                parts += [form.open, form.before + text + form.after, form.close]
        return [token_id for part in parts for token_id in self._spelled(part)]

    def _in_channel(
        self, form: ChannelFormat, head: str, text: str, end: Mark | None = None
    ) -> list[int]:
        """Return the tokens of a message in a channel, from its header on."""
        parts = (form.channel, head, form.body, text, end or form.end)
        return [token_id for part in parts for token_id in self._spelled(part)]

    def _spelled(self, part: Mark | str) -> list[int]:
        if isinstance(part, Mark) and part.token_id is not None:
            return [part.token_id]
        return self.make().encode(part if isinstance(part, str) else part.text)


def _calls_in(deltas: Iterable[Delta]) -> list[Call]:
    """Return the calls in some deltas."""
    calls = tool_calls_of(deltas)
    assert all(call.parsed().keys() == {"what"} for call in calls)
    return [(call.name, call.parsed()["what"]) for call in calls]


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _text_of_call(form: CallFormat, name: str, what: str) -> str:
    call: Any = form.call
    if isinstance(call, JsonCall):
        return _json({call.name: name, call.arguments: {"what": what}})
    if isinstance(call, NamedCall):
        return f"{name}{call.between}{_json({'what': what})}"
    value = f"{call.before_key}what{call.after_key}{call.before_value}{what}"
    return f"{call.before_name}{name}{call.after_name}{value}{call.after_value}{call.end}"
