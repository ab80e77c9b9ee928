"""What a tokenizer must do with large conversations: each part of them is in the prompt.

One part at a time is changed, and the prompt must change, or refuse what it cannot say. Texts are
longer than any likely limit, and differ in the middle only.
"""

import contextlib
import copy
import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from vlmkit.errors import RequestError
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.types.image import Image
from vlmkit.types.image_options import ImageOptions
from vlmkit.types.message import ImagePart, Message, Part, TextPart
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_testing.contracts.pictures import picture
from vlmkit_testing.contracts.tokenizer_image_sizes_contract import TokenizerImageSizesContract

NUM_TURNS = 30
NUM_TOOLS = 12
NUM_CALLS = 4
LONG_CHARS = 120_000
NUMS_CHARS = (10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)
Leaf = tuple[Any, ...]


class TokenizerLargeContract(TokenizerImageSizesContract):
    """The part of the contract about sizes beyond any likely limit."""

    def test_each_turn_of_a_long_conversation_is_in_the_prompt(self) -> None:
        """Of thirty, from the first to the last."""
        turns = [Message.of("user" if i % 2 == 0 else "assistant", f"turn {i}") for i in range(31)]
        others = (
            [*turns[:i], Message.of(turns[i].role, f"torn {i}"), *turns[i + 1 :]]
            for i in range(NUM_TURNS)
        )
        self._check_changes(turns, others)

    def test_each_result_of_parallel_calls_is_in_the_prompt(self) -> None:
        """Names, nested arguments and results of four calls, and what belongs to which."""
        arguments = [{"what": f"a{i}", "how": {"far": [i, f"b{i}"]}} for i in range(NUM_CALLS)]
        turns = self._with_calls(arguments, [f"result {i}" for i in range(NUM_CALLS)])
        changed: list[list[Message]] = []
        for number in range(NUM_CALLS):
            for other in (
                {"what": "other", "how": {"far": [number, f"b{number}"]}},
                {"what": f"a{number}", "how": {"far": [number + 7, f"b{number}"]}},
                {"what": f"a{number}", "how": {"far": [number, "other"]}},
                {"what": f"a{number}", "why": {"far": [number, f"b{number}"]}},
                {"what": f"a{number}", "how": {"far": [f"b{number}", number]}},
            ):
                others = [*arguments[:number], other, *arguments[number + 1 :]]
                changed.append(self._with_calls(others, [f"result {i}" for i in range(NUM_CALLS)]))
            results = [f"result {i}" for i in range(NUM_CALLS)]
            results[number] = "another"
            changed.append(self._with_calls(arguments, results))
        swapped = [f"result {i}" for i in (1, 0, 2, 3)]
        self._check_changes(turns, [*changed, self._with_calls(arguments, swapped)])

    def test_the_calls_of_all_results_are_in_the_prompt_or_of_none(self) -> None:
        """Results that change their calls change the prompt, if any such two do.

        Some templates have no ids of calls, and go by the order of the results.
        """
        turns = self._with_calls([{"what": f"a{i}"} for i in range(NUM_CALLS)], ["it"] * NUM_CALLS)
        tokenizer = self.make()
        try:
            prompt = tokenizer.prompt(turns)
        except RequestError:
            pytest.skip("this model refuses such a conversation")
        is_other = {}
        for one, other in itertools.combinations(range(2, 2 + NUM_CALLS), 2):
            changed = list(turns)
            changed[one] = dataclasses.replace(turns[one], call_id=turns[other].call_id)
            changed[other] = dataclasses.replace(turns[other], call_id=turns[one].call_id)
            with contextlib.suppress(RequestError):
                ids = tokenizer.prompt(changed).token_ids
                is_other[one - 2, other - 2] = ids != prompt.token_ids
        assert len({*is_other.values()}) <= 1, f"a change of calls is not in the prompt: {is_other}"

    def test_each_part_of_many_tools_is_in_the_prompt(self) -> None:
        """Of twelve with nested schemas: names, descriptions, properties and choices."""
        tokenizer, turns = self.make(), self._conversation()
        tools = [_tool(number) for number in range(NUM_TOOLS)]
        try:
            prompt = tokenizer.prompt(turns, tools=tools)
        except RequestError:
            pytest.skip("this model takes no tools")
        made = {prompt.token_ids: "all of them"}
        places = [each for each in PLACES if self.shows_nested_schemas or "items" not in each]
        for number, place in itertools.product((0, 8, NUM_TOOLS - 1), places):
            changed = copy.deepcopy(tools)
            parent: Any = changed[number]
            for key in place[:-1]:
                parent = parent[key]
            parent[place[-1]] = f"{parent[place[-1]]} now"
            ids = tokenizer.prompt(turns, tools=changed).token_ids
            assert ids not in made, f"tool {number} lacks {place}, as {made[ids]}"
            made[ids] = f"{number} {place}"

    @pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
    def test_long_texts_that_differ_in_the_middle_have_other_prompts(self, role: str) -> None:
        """Equal lengths, starts and ends do not make two texts the same."""
        half = "a fox, and so on. " * (LONG_CHARS // 36)
        tokenizer = self.make()  # one for both: what it remembers of the first is not the second's
        texts = [f"{half}{word}{half}" for word in ("this", "that")]
        made = [self._prompt_of(tokenizer, role, text) for text in texts]
        assert (made[0] is None) == (made[1] is None)
        assert made[0] is None or made[1] is None or made[0].token_ids != made[1].token_ids
        assert made[0] is None or self.make().decode(made[0].token_ids).count("a fox") == 2 * (
            LONG_CHARS // 36
        )

    def test_a_long_text_has_the_special_tokens_of_a_short_one(self) -> None:
        """Those around a whole text, none without them, and those of a prompt once."""
        tokenizer = self.make()
        around, controls = self._around(tokenizer, "a"), self._controls_of(tokenizer, "a")
        for num in NUMS_CHARS:
            text = ("it is a fox, " * (num // 13 + 1))[:num]
            assert self._around(tokenizer, text) == around, f"in a text of {num} characters"
            assert self._controls_of(tokenizer, text) == controls, f"in a text of {num} characters"

    def test_each_of_many_images_has_its_own_slot(self) -> None:
        """Of six, of which two are equal and one is mirrored: in order, as each one alone."""
        if not self.takes_images:
            pytest.skip("this model takes no images")
        images = [picture(seed=1), picture(64, 48), picture(seed=1), _mirrored(picture(seed=1))]
        images += [picture(30, 200, seed=3), picture(seed=4)]
        sizes = [ImageOptions()] * len(images)
        if self.smaller() and "mm_processor_kwargs" in self.make().honours:
            sizes[1::3] = [ImageOptions(processor=dict(self.smaller()))] * 2
        parts = [ImagePart(image, size) for image, size in zip(images, sizes, strict=True)]
        text = TextPart("?")
        alone = [self._prompt([Message("user", (part, text))]).media[0] for part in parts]
        slots = self._prompt([Message("user", (*parts, text))]).media
        facts = [(s.digest, s.num_features, s.stop - s.start, s.kind) for s in slots]
        assert facts == [(s.digest, s.num_features, s.stop - s.start, s.kind) for s in alone]
        assert len({slot.digest for slot in slots}) == len(images) - 1

    # Helpers

    def _around(self, tokenizer: Tokenizer, text: str) -> tuple[list[int], list[int]]:
        """Return the tokens that are put before and behind a whole text."""
        alone, whole = tokenizer.encode(text), tokenizer.encode(text, adds_special=True)
        assert not self._special_ids().intersection(alone)
        starts = range(len(whole) - len(alone) + 1)
        num = next((n for n in starts if whole[n : n + len(alone)] == alone), None)
        assert num is not None, "a whole text has other tokens than the text alone"
        return whole[:num], whole[num + len(alone) :]

    def _controls_of(self, tokenizer: Tokenizer, text: str) -> list[int]:
        """Return the special tokens of a prompt with a text."""
        return self._controls(tokenizer.prompt([self._asked(text)]))

    def _prompt_of(self, tokenizer: Tokenizer, role: str, text: str) -> Prompt | None:
        """Return a prompt in which a role has a text; None if it is refused."""
        last = self._asked("so?")
        turns: dict[str, list[Message]] = {
            "system": [Message.of("system", text), last],
            "user": [Message.of("user", text)],
            "assistant": [
                self._asked("hi"),
                Message.of("assistant", text),
                Message.of("user", "so?"),
            ],
            "tool": self._with_calls([{"what": "a"}], [text]),
        }
        try:
            return tokenizer.prompt(turns[role])
        except RequestError:
            return None

    def _with_calls(
        self, arguments: Sequence[Mapping[str, Any]], results: Sequence[str]
    ) -> list[Message]:
        """Return a conversation with parallel calls and their results."""
        calls: list[Part] = [
            ToolCallPart(f"call{i:05}", "find", msgspec.json.encode(each).decode())
            for i, each in enumerate(arguments)
        ]
        answers = [
            Message("tool", (TextPart(result),), f"call{i:05}") for i, result in enumerate(results)
        ]
        return [self._asked("hello"), Message("assistant", tuple(calls)), *answers]

    def _check_changes(self, turns: list[Message], others: Iterable[list[Message]]) -> None:
        """Fail unless all conversations have different prompts; skip if the first is refused."""
        try:
            made = {self._prompt(turns).token_ids}
        except RequestError:
            pytest.skip("this model refuses such a conversation")
        num = 1
        for each in others:
            try:
                made.add(self._prompt(each).token_ids)
            except RequestError:
                continue
            num += 1
            assert len(made) == num, f"a change of a conversation is not in its prompt: {each}"


def _tool(number: int) -> dict[str, Any]:
    """Return a tool whose schema has three levels."""
    inner = {"type": "string", "enum": [f"red{number}", f"blue{number}"]}
    item = {"type": "object", "properties": {"colour": inner}}
    takes = {
        "type": "object",
        "properties": {
            "what": {"type": "string", "description": f"thing {number}"},
            "pairs": {"type": "array", "description": f"pairs {number}", "items": item},
        },
        "required": ["what"],
    }
    function = {"name": f"tool{number}", "description": f"does {number}", "parameters": takes}
    return {"type": "function", "function": function}


_TAKES = ("function", "parameters", "properties")
PLACES: tuple[Leaf, ...] = (
    ("function", "name"),
    ("function", "description"),
    (*_TAKES, "what", "description"),
    (*_TAKES, "pairs", "description"),
    (*_TAKES, "pairs", "items", "properties", "colour", "enum", 0),
    (*_TAKES, "pairs", "items", "properties", "colour", "enum", 1),
)


def _mirrored(image: Image) -> Image:
    return Image.open(np.asarray(image.to_pil())[:, ::-1].copy())
