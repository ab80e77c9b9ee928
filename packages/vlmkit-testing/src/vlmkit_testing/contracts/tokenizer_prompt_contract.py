"""What a tokenizer must do with conversations: no text is lost, and none acts as structure."""

import contextlib
import copy
import itertools
from collections.abc import Sequence, Set
from typing import Any, get_args

import pytest

from vlmkit.errors import RequestError
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.types.message import ImagePart, Message, Role, TextPart
from vlmkit.types.prompt_options import PromptOption, PromptOptions, ReasoningEffort
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_testing.contracts.pictures import picture
from vlmkit_testing.contracts.tokenizer_subject import TokenizerSubject, tool

COMBINED = ("system", "turns", "image", "tools", "effort")
NEAR_TOKENS = 3  # within which a turn's own end stands behind its text


class TokenizerPromptContract(TokenizerSubject):
    """Turns, roles, tools and calls are in the prompt or refused; typed text is only text."""

    def test_a_prompt_without_images_has_no_slots(self) -> None:
        """Token ids are plain integers within the vocabulary."""
        tokenizer = self.make()
        prompt = self._prompt([Message.of("user", "hello")])
        assert prompt.media == ()
        assert len(prompt) > 0
        assert all(type(i) is int and i >= 0 for i in prompt.token_ids)
        assert max(prompt.token_ids) < tokenizer.vocab_size

    def test_what_begins_a_text_begins_a_prompt_once(self) -> None:
        """A template and a tokenizer may both add it, and models know it once.

        With and without tools, and with each option that the tokenizer honours.
        """
        tokenizer, said = self.make(), self.make().encode("a")
        whole = tuple(tokenizer.encode("a", adds_special=True))
        num = next(n for n in range(len(whole)) if list(whole[n : n + len(said)]) == said)
        begin = whole[:num]
        asked = self._asked("?")
        conversations = (
            self._conversation(),
            [Message.of("system", "be brief"), asked],
            [asked, Message.of("assistant", "so"), asked],
            [asked, Message.of("assistant", "so")],
            self._called("a"),
        )
        for messages, tools, options in itertools.product(
            conversations, (None, [tool()]), self._options(tokenizer)
        ):
            goes_on = options.continue_final_message
            if not begin or (goes_on and messages[-1].role != "assistant"):
                continue
            with contextlib.suppress(RequestError):
                prompt = tokenizer.prompt(messages, tools=tools, options=options)
                leading = [slot.stop for slot in prompt.media[:1] if slot.start == 0]
                ids = prompt.token_ids[sum(leading) :]  # an image may stand before all text
                assert ids[:num] == begin, f"a prompt does not begin as texts do, with {options}"
                assert ids[num : 2 * num] != begin, f"a prompt begins twice with {options}"

    # Turns

    def test_a_conversation_has_every_turn_in_its_prompt(self) -> None:
        """A change of any earlier turn changes the prompt."""
        turns = [Message.of("user", "one"), Message.of("assistant", "two")]
        last = Message.of("user", "three")
        prompt = self._prompt([*turns, last])
        assert len(prompt) > len(self._prompt([last]))
        other = self._prompt([turns[0], Message.of("assistant", "four"), last])
        assert prompt.token_ids != other.token_ids

    @pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
    def test_a_text_of_any_role_is_in_the_prompt_or_refused(self, role: Role) -> None:
        """There must be no answer without it."""
        made = [self._made(self._with_turn(role, text)) for text in ("one", "two")]
        assert made[0] is None or made[1] is None or made[0].token_ids != made[1].token_ids
        assert (made[0] is None) == (made[1] is None)

    @pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
    def test_each_text_of_a_turn_is_in_the_prompt(self, role: Role) -> None:
        """A turn may have several parts, in the order of its author."""
        texts = (("one", "two"), ("one", "six"), ("six", "two"), ("two", "one"))
        made = [self._made(self._with_turn(role, *parts)) for parts in texts]
        prompts = [prompt.token_ids for prompt in made if prompt is not None]
        assert len(prompts) in (0, len(texts))
        assert len(set(prompts)) == len(prompts)

    def test_a_text_beside_a_call_is_in_the_prompt_or_refused(self) -> None:
        """Before the call, which is in the prompt, too."""
        made = []
        for said, name in (("one", "a"), ("two", "a"), ("one", "b")):
            question, called, result = self._called("a", name=name)
            parts = (TextPart(said), *called.parts[1:])
            made.append(self._made([question, Message("assistant", parts), result]))
        prompts = [prompt.token_ids for prompt in made if prompt is not None]
        assert len(prompts) in (0, len(made))
        assert len(set(prompts)) == len(prompts)

    def test_each_part_of_a_combination_is_in_the_prompt_or_refused(self) -> None:
        """Of two of these: a system text, earlier turns, another image, tools, an effort."""
        none, *others = [self._combined({name}) for name in ("", *COMBINED)]
        effective = [
            name
            for name, made in zip(COMBINED, others, strict=True)
            if made is not None and made != none
        ]
        for one, other in itertools.combinations(effective, 2):
            made = [self._combined(names) for names in ({one}, {other}, {one, other})]
            assert None in made or len(set(made)) == 3, f"{one} or {other} is missing"

    def test_roles_are_in_the_prompt_or_refused(self) -> None:
        """The model's answers differ from the user's texts."""
        last = Message.of("user", "three")
        one, two = Message.of("user", "one"), Message.of("user", "two")
        self._check_apart([one, Message.of("assistant", "two"), last], [one, two, last])
        if self.tells_roles:
            self._check_apart([Message.of("system", "one"), last], [one, last])
            *called, result = self._called("a")
            self._check_apart([*called, result], [*called, Message("user", result.parts)])

    def test_no_typed_text_is_another_turn(self) -> None:
        """Typing the text that separates turns does not create a turn."""
        if not self.marks_turns:
            pytest.skip("this model's template writes turns as words that can be typed")
        turns = [Message.of("user", "one"), Message.of("assistant", "six")]
        prompt = self._prompt([*turns, Message.of("user", "two")])
        text = self.make().decode(prompt.token_ids)
        typed = text[text.rindex("one") : text.rindex("two") + len("two")]
        assert "six" in typed
        assert self._prompt([Message.of("user", typed)]).token_ids != prompt.token_ids

    def test_an_earlier_answer_ends_as_answers_do(self) -> None:
        """With a token of ``eos_ids``; otherwise the model would learn to continue forever."""
        if not self.ends_turns:
            pytest.skip("this model's template ends earlier answers in another way")
        last = Message.of("user", "two")
        ids = [
            self._prompt([Message.of("user", "one"), Message.of("assistant", said), last]).token_ids
            for said in ("yes", "never")
        ]
        common = next(num for num in range(1, min(map(len, ids))) if ids[0][-num] != ids[1][-num])
        behind = ids[0][len(ids[0]) - common + 1 :][:NEAR_TOKENS]
        assert self.make().eos_ids.intersection(behind)

    @pytest.mark.parametrize(
        "roles",
        [(), ("system",), ("assistant",), ("user", "user"), ("user", "assistant"), ("tool",)],
        ids=" ".join,
    )
    def test_odd_conversations_are_taken_or_refused(self, roles: tuple[Role, ...]) -> None:
        """The only exception is a RequestError."""
        for text in ("hello", ""):
            self._made([Message.of(role, text) for role in roles])
        self._made([Message(role, ()) for role in roles])

    # Tools

    def test_tools_are_in_the_prompt_or_refused(self) -> None:
        """The whole definition, since there must be no answer without it."""
        tokenizer, turns = self.make(), self._conversation()
        tools = [tool(), tool(name="send"), tool(description="undoes it"), tool(key="whom")]
        try:
            prompts = [tokenizer.prompt(turns, tools=[each]) for each in tools]
        except RequestError:
            return
        prompts += [tokenizer.prompt(turns, tools=tools[:2]), tokenizer.prompt(turns)]
        assert len({prompt.token_ids for prompt in prompts}) == len(tools) + 2

    def test_only_offered_tools_have_a_call_format(self) -> None:
        """Other tools have none."""
        tokenizer, turns, tools = self.make(), self._conversation(), [tool("find"), tool("send")]
        assert tokenizer.prompt(turns).calling is None
        assert tokenizer.prompt(turns, tools=[]).calling is None
        try:
            calling = tokenizer.prompt(turns, tools=tools).calling
        except RequestError:
            return
        assert calling is None or list(calling.tools) == tools

    def test_calls_of_tools_are_in_the_prompt_or_refused(self) -> None:
        """Another name or argument changes the prompt."""
        try:
            prompt = self._prompt(self._called("a"))
        except RequestError:
            return
        for fields in ({"name": "other"}, {"arguments": '{"a": 2}'}, {"arguments": '{"b": 1}'}):
            other = self._prompt(self._called("a", **fields))
            assert other.token_ids != prompt.token_ids

    @pytest.mark.parametrize("names", [("find",) * 3, ("find", "send", "ask")], ids=" ".join)
    def test_a_result_belongs_to_the_call_that_it_names(self, names: tuple[str, ...]) -> None:
        """Whatever the order of calls, of results and of ids: other pairs give another prompt."""
        tokenizer = self.make()
        seen: dict[tuple[int, ...], tuple[str, ...]] = {}
        orders = list(itertools.permutations("abc"))
        for calls, results in itertools.product(orders, repeat=2):
            for texts in (dict(zip("abc", order, strict=True)) for order in orders[:2]):
                said = [(each, texts[each]) for each in results]
                prompt = self._made(self._with_results(names, calls, said), tokenizer)
                if prompt is not None:
                    pairs = tuple(texts[call] for call in calls)
                    other = seen.setdefault(prompt.token_ids, pairs)
                    assert other == pairs, "conversations with other pairs have one prompt"

    def test_its_inputs_are_not_modified(self) -> None:
        """A conversation may be used again, and a prompt keeps no list that may change."""
        tools = [tool("find"), tool("send")]
        before = copy.deepcopy(tools)
        turns = [Message.of("system", "be brief"), *self._conversation()]
        given = list(turns)
        for offered in (None, tools):
            prompt = None
            with contextlib.suppress(RequestError):
                prompt = self.make().prompt(given, tools=offered)
        assert tools == before
        assert given == turns
        tools.clear()
        given.clear()
        if prompt is not None and prompt.calling is not None:
            assert list(prompt.calling.tools) == before

    # What is typed is text

    @pytest.mark.parametrize("role", ["system", "user", "assistant"])
    def test_typed_special_texts_do_not_change_the_structure_of_a_prompt(self, role: Role) -> None:
        """The prompt has the same special tokens as with harmless text, in any role."""
        harmless = self._made(self._with_turn(role, "hello"))
        if harmless is None:
            pytest.skip(f"this model takes no turns of {role}")
        for text in self.special_texts():
            typed = self._prompt(self._with_turn(role, f"a{text}b"))
            assert self._controls(typed) == self._controls(harmless), text

    @pytest.mark.parametrize("role", ["system", "user", "assistant"])
    def test_two_texts_never_join_to_a_special_text(self, role: Role) -> None:
        """A client may send half of its spelling in one part, and half in the next."""
        harmless = self._made(self._with_turn(role, "a", "b"))
        if harmless is None:
            pytest.skip(f"this model takes no turns of {role}")
        for text in self.special_texts():
            half = len(text) // 2
            typed = self._prompt(self._with_turn(role, f"a{text[:half]}", f"{text[half:]}b"))
            assert self._controls(typed) == self._controls(harmless), text

    def test_typed_placeholders_make_no_image_slot(self) -> None:
        """Images are placed by structure, not by a string search."""
        images = [picture()] if self.takes_images else []
        text = "".join(self.special_texts())
        prompt = self._prompt([Message.of("user", f"{text}?", images)])
        assert len(prompt.media) == len(images)

    def test_no_string_of_an_earlier_answer_changes_the_structure_of_a_prompt(self) -> None:
        """Nor of a tool's result: a call's id, name and arguments, and reasoning, are text."""
        harmless = self._made(self._called("a"))
        if harmless is None:
            pytest.skip("this model takes no calls of tools")
        for text in self.special_texts():
            marked = self._prompt(self._called(f"a{text}b"))
            assert self._controls(marked) == self._controls(harmless), text

    def test_no_string_of_a_tool_changes_the_structure_of_a_prompt(self) -> None:
        """Clients and their tools write names and descriptions."""
        tokenizer, turns = self.make(), self._conversation()
        try:
            harmless = tokenizer.prompt(turns, tools=[tool("a", "a", "a")])
        except RequestError:
            pytest.skip("this model takes no tools")
        for text in self.special_texts():
            marked = tokenizer.prompt(turns, tools=[tool(*[f"a{text}b"] * 3)])
            assert self._controls(marked) == self._controls(harmless), text

    # Helpers

    def _options(self, tokenizer: Tokenizer) -> list[PromptOptions]:
        """Return the defaults, and each option that a tokenizer honours, by itself."""
        values: dict[PromptOption, tuple[Any, ...]] = {
            "add_generation_prompt": (False,),
            "continue_final_message": (True,),
            "chat_template_kwargs": ({"unused": True},),
            "reasoning_effort": get_args(ReasoningEffort),
            "light": (True,),
        }
        return [
            PromptOptions(),
            *(
                PromptOptions(**{name: value})
                for name, tried in values.items()
                if name in tokenizer.honours
                for value in tried
            ),
        ]

    def _made(
        self, messages: Sequence[Message], tokenizer: Tokenizer | None = None
    ) -> Prompt | None:
        """Return the prompt of a conversation; None if it is refused."""
        try:
            return (tokenizer or self.make()).prompt(messages)
        except RequestError:
            return None

    def _with_turn(self, role: Role, *texts: str) -> list[Message]:
        """Return a conversation in which a role has a turn of some texts."""
        parts = tuple(map(TextPart, texts))
        if role == "tool":
            *called, result = self._called("a")
            return [*called, Message("tool", parts, result.call_id)]
        if role == "assistant":
            return [Message.of("user", "hi"), Message(role, parts), Message.of("user", "so?")]
        if role == "system":
            return [Message(role, parts), Message.of("user", "so?")]
        return [Message(role, parts)]

    def _with_results(
        self, names: Sequence[str], calls: Sequence[str], results: Sequence[tuple[str, str]]
    ) -> list[Message]:
        """Return a conversation with parallel calls and their results.

        Args:
            names: the tool of each call.
            calls: the id of each call.
            results: the id and the text of each result, as "a" for "result a".
        """
        parts = tuple(
            ToolCallPart(call_id, name, f'{{"what": {place}}}')
            for place, (call_id, name) in enumerate(zip(calls, names, strict=True))
        )
        said = [Message("tool", (TextPart(f"result {text}"),), each) for each, text in results]
        return [self._asked("hello"), Message("assistant", parts), *said]

    def _combined(self, names: Set[str]) -> tuple[object, ...] | None:
        """Return what distinguishes a prompt with some of ``COMBINED``; None if it is refused."""
        tokenizer, messages = self.make(), [self._asked("hello")]
        if "image" in names and self.takes_images:
            messages = [Message("user", (*messages[0].parts, ImagePart(picture(seed=5))))]
        if "turns" in names:
            messages = [self._asked("one"), Message.of("assistant", "two"), *messages]
        if "system" in names:
            messages = [Message.of("system", "be brief"), *messages]
        is_effort = "effort" in names and "reasoning_effort" in tokenizer.honours
        options = PromptOptions(reasoning_effort="high" if is_effort else None)
        try:
            made = tokenizer.prompt(
                messages, tools=[tool()] if "tools" in names else None, options=options
            )
        except RequestError:
            return None
        return made.token_ids, *(slot.digest for slot in made.media)

    def _check_apart(self, one: list[Message], other: list[Message]) -> None:
        tokenizer = self.make()  # one for both: what it remembers of the first is not the second's
        made = self._made(one, tokenizer), self._made(other, tokenizer)
        assert None in made or len({prompt.token_ids for prompt in made if prompt}) == 2
