"""The thinking budget: ends an answer's reasoning after a number of tokens.

Once the budget is used up, only the next token of the mark that ends reasoning may follow. Like
every rule, it clears bits of a step's bitmasks, so it holds for every sampler and for drafts. It
does not begin reasoning, and does not shorten the text after it.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence as Seq
from functools import partial
from typing import Literal, NamedTuple

from vlmkit.interfaces.chat_format import ChannelFormat, Mark
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.running.constraints.token_rules import Rule
from vlmkit.running.sampling.token_sets import BITS, Words, words_of

MAX_HEAD_BYTES = 1024  # of a message in a channel; anything longer is no head

BytesOf = Callable[[int], bytes]
Phase = Literal["begin", "head", "opened", "thinking", "said"]


class _State(NamedTuple):
    """The state of an answer after some tokens.

    Attributes:
        phase: ``begin`` is before any word, ``head`` is in the head of a message, and ``opened`` is
            before the first token of reasoning that the prompt began.
        held: bytes that may be part of a mark or a head.
        num_tokens: tokens of reasoning so far, without marks.
        num_closing: forced tokens so far of the mark that ends reasoning.
    """

    phase: Phase
    held: bytes = b""
    num_tokens: int = 0
    num_closing: int = 0


class ThinkingBudget(Rule):
    """Bounds the reasoning of one answer. It counts tokens, so each answer needs its own.

    Args:
        max_tokens: tokens of reasoning, without the marks around it.
        closing: the tokens of the mark that ends reasoning.
        first: the state before the first token.
    """

    def __init__(self, max_tokens: int, closing: Seq[int], first: _State) -> None:
        self._max_tokens = max_tokens
        self._closing = tuple(closing)
        self._first = self._state = first
        self._num_followed = 0  # tokens of the answer that the state includes

    def narrow(self, sequence: Sequence, ahead: Seq[int], mask: Words) -> None:
        """Clear all tokens but the next one of the closing mark, where reasoning must end."""
        state = self._current(sequence)
        for token_id in ahead:
            state = self._after(state, token_id)
        if self._must_end(state):
            mask &= words_of(self._closing[state.num_closing :][:1], len(mask) * BITS)
        for token_id in self._reopening(state):
            mask[token_id // BITS] &= ~words_of((token_id % BITS,), BITS)[0]

    def forced(self, sequence: Sequence) -> Seq[int]:
        """Return the tokens of the closing mark, where reasoning must end."""
        state = self._current(sequence)
        return self._closing[state.num_closing :] if self._must_end(state) else ()

    def _current(self, sequence: Sequence) -> _State:
        if self._num_followed > len(sequence.output_ids):
            self._state, self._num_followed = self._first, 0
        for token_id in sequence.output_ids[self._num_followed :]:
            self._state = self._after(self._state, token_id)
        self._num_followed = len(sequence.output_ids)
        return self._state

    def _is_used_up(self, state: _State) -> bool:
        return state.num_tokens >= self._max_tokens

    def _must_end(self, state: _State) -> bool:
        return state.phase in ("opened", "thinking") and self._is_used_up(state)

    def _after(self, state: _State, token_id: int) -> _State:
        if self._must_end(state) and token_id == self._closing[state.num_closing]:
            num_closing = state.num_closing + 1
            if num_closing == len(self._closing):
                return _State("said", num_tokens=state.num_tokens)
            return state._replace(num_closing=num_closing)
        return self._follow(state, token_id)

    @abstractmethod
    def _follow(self, state: _State, token_id: int) -> _State:
        """Return the state after one more token that was not forced."""

    def _reopening(self, state: _State) -> Seq[int]:  # noqa: ARG002 - of one format
        """Return the tokens that would begin reasoning beyond the budget."""
        return ()


class MarkedBudget(ThinkingBudget):
    """Bounds reasoning between two marks at the beginning of an answer.

    It recognises reasoning as :class:`vlmkit.kit.reasoning_parser.ReasoningParser` does.

    Args:
        max_tokens: tokens of reasoning, without marks.
        marks: the marks that begin and end reasoning.
        closing: the tokens of the second mark.
        bytes_of: returns the bytes that a token adds to a text.
        is_open: whether the prompt already began the reasoning.
    """

    def __init__(
        self,
        max_tokens: int,
        marks: tuple[Mark, Mark],
        closing: Seq[int],
        bytes_of: BytesOf,
        *,
        is_open: bool,
    ) -> None:
        super().__init__(max_tokens, closing, _State("opened" if is_open else "begin"))
        self._start, self._end = marks
        self._bytes_of = bytes_of

    def _follow(self, state: _State, token_id: int) -> _State:
        if state.phase == "begin":
            return self._begin(state, token_id)
        if state.phase == "opened" and token_id == self._start.token_id:
            return _State("thinking")  # the model writes the mark once more
        return state if state.phase == "said" else self._think(state, token_id)

    def _begin(self, state: _State, token_id: int) -> _State:
        if token_id == self._start.token_id:
            return _State("thinking")
        held = (state.held + self._bytes_of(token_id)).lstrip()
        start = b"" if self._start.token_id is not None else self._start.text.encode()
        if start and held.startswith(start):
            return self._think(_State("thinking"), token_id, held.removeprefix(start))
        may_begin = not held or (start and start.startswith(held))
        return _State("begin", held) if may_begin else _State("said")

    def _think(self, state: _State, token_id: int, added: bytes | None = None) -> _State:
        num_tokens = state.num_tokens + (added != b"")
        if token_id == self._end.token_id:
            return _State("said", num_tokens=state.num_tokens)
        if self._end.token_id is not None:
            return _State("thinking", num_tokens=num_tokens)
        end = self._end.text.encode()
        held = state.held + (self._bytes_of(token_id) if added is None else added)
        if end in held:
            return _State("said", num_tokens=num_tokens)
        return _State("thinking", held[1 - len(end) :] if len(end) > 1 else b"", num_tokens)


class ChannelBudget(ThinkingBudget):
    """Bounds reasoning in messages of a channel of its own, all of them together.

    Once the budget is used up, no further message of that channel may begin.

    Args:
        max_tokens: tokens of reasoning, without heads and marks.
        form: the format of messages, whose marks are tokens.
        closing: the token that ends a message.
        reopening: the first token of the channel's name, unless another channel begins with it.
        bytes_of: returns the bytes that a token adds to a text.
    """

    def __init__(
        self,
        max_tokens: int,
        form: ChannelFormat,
        closing: Seq[int],
        reopening: Seq[int],
        bytes_of: BytesOf,
    ) -> None:
        phase: Phase = "said" if form.opens else "head"
        first = _State("thinking" if form.opens == form.reasoning else phase)
        super().__init__(max_tokens, closing, first)
        self._form = form
        self._names = tuple(reopening)
        self._bytes_of = bytes_of

    def _follow(self, state: _State, token_id: int) -> _State:
        form, num_tokens = self._form, state.num_tokens
        if token_id in (form.start.token_id, form.end.token_id):
            return _State("head", num_tokens=num_tokens)
        if token_id == form.channel.token_id:
            held = state.held if state.phase == "head" else b""
            return _State("head", held + _CHANNEL, num_tokens)
        if state.phase == "thinking":
            return _State("thinking", num_tokens=num_tokens + 1)
        if state.phase != "head":
            return state
        if token_id == form.body.token_id:
            phase: Phase = "thinking" if self._thinks(state) else "said"
            return _State(phase, num_tokens=num_tokens)
        held = (state.held + self._bytes_of(token_id))[:MAX_HEAD_BYTES]
        return _State("head", held, num_tokens)

    def _thinks(self, state: _State) -> bool:
        """Return whether a head begins reasoning; a call may use the same channel, and does not."""
        before, _, channel = state.held.partition(_CHANNEL)
        recipient = self._form.recipient.strip().encode()
        words = [*before.split(), *channel.split()]
        is_call = any(word.startswith(recipient) for word in words)
        return self._form.reasoning.encode() in channel.split() and not is_call

    def _reopening(self, state: _State) -> Seq[int]:
        """Return the token that would begin the name of the reasoning channel."""
        is_name = state.phase == "head" and state.held.endswith(_CHANNEL)
        return self._names if is_name and self._is_used_up(state) else ()


_CHANNEL = b"\0"  # stands for the mark before a channel's name in a head


def thinking_budget(
    max_tokens: int | None, prompt: Prompt, tokenizer: Tokenizer
) -> Callable[[], ThinkingBudget] | None:
    """Return a factory of rules that bound the reasoning of one answer each.

    Args:
        max_tokens: tokens of reasoning in each answer; unbounded when None.
        prompt: the prompt, which says how its answer is parsed.
        tokenizer: the tokenizer of the model.

    Returns:
        A factory, since each answer needs its own rule; None if there is nothing to bound.
    """
    if max_tokens is None or prompt.is_plain:
        return None
    bytes_of = tokenizer.token_bytes
    if (form := prompt.channels) is not None:
        if (end_id := form.end.token_id) is None:
            return None
        reopening = _first_of_its_own(form, tokenizer)
        return partial(ChannelBudget, max_tokens, form, (end_id,), reopening, bytes_of)
    if (marks := prompt.reasoning_marks) is None:
        return None
    end, is_open = marks[1], prompt.opens_reasoning
    closing = tokenizer.encode(end.text) if end.token_id is None else (end.token_id,)
    return partial(MarkedBudget, max_tokens, marks, closing, bytes_of, is_open=is_open)


def _first_of_its_own(form: ChannelFormat, tokenizer: Tokenizer) -> list[int]:
    """Return the first token of the reasoning channel's name, unless another begins with it."""
    first = tokenizer.encode(form.reasoning)[:1]
    others = [tokenizer.encode(name)[:1] for name in (form.said, form.calls)]
    return [] if first in others else first
