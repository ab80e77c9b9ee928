"""Tokenizers that break a promise about conversations: they drop parts or parse typed tokens."""

import dataclasses
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np

from broken.broken import Broken
from broken.changed_tokenizer import Changed, with_role
from vlmkit.interfaces.chat_format import CallFormat, Calling, JsonCall, Mark
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.interfaces.tokenizer import PLAIN
from vlmkit.types.message import Message, Part, TextPart
from vlmkit.types.prompt_options import PromptOptions
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vocabulary import BEGIN, CALL, CALL_END, END, IMAGE


class ReturnsAnArray(Changed):
    def made(self, prompt: Prompt) -> Prompt:
        return dataclasses.replace(prompt, token_ids=tuple(np.array(prompt.token_ids)))


class CachesPromptsByTheirTexts(MockTokenizer):
    """Caches prompts by their texts alone, without roles."""

    def __init__(self) -> None:
        super().__init__()
        self.prompts: dict[tuple[str, ...], Prompt] = {}

    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        key = tuple(message.text for message in messages)
        if key not in self.prompts:
            self.prompts[key] = super().prompt(messages, tools=tools, options=options)
        return self.prompts[key]


class InventsASlot(Changed):
    def made(self, prompt: Prompt) -> Prompt:
        return dataclasses.replace(prompt, media=(*prompt.media, MediaSlot(0, 1, bytes(32), {}, 1)))


class DropsTheSystem(Changed):
    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        return [message for message in messages if message.role != "system"]


class DropsResults(Changed):
    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        return [message for message in messages if message.role != "tool"]


class DropsItsOwnAnswers(Changed):
    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        return [m for m in messages[:-1] if m.role != "assistant"] + list(messages[-1:])


class KeepsOnlyTheFirstText(Changed):
    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        said = []
        for message in messages:
            texts = [part for part in message.parts if isinstance(part, TextPart)]
            others = [part for part in message.parts if not isinstance(part, TextPart)]
            said.append(dataclasses.replace(message, parts=(*others, *texts[:1])))
        return said


class SortsTexts(Changed):
    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        return [dataclasses.replace(m, parts=tuple(sorted(m.parts, key=str))) for m in messages]


class IgnoresRoles(Changed):
    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        return [with_role(message, "user") for message in messages]


class OmitsTheIdsOfCalls(Changed):
    """Writes results in the order in which they came, without the ids of their calls."""

    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        return [dataclasses.replace(message, call_id=None) for message in messages]


class RenamesCallIds(Changed):
    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        calls = [p for m in messages for p in m.parts if isinstance(p, ToolCallPart)]
        results = [message for message in messages if message.role == "tool"]
        ids = iter(self.ids(calls, results))
        return [
            dataclasses.replace(message, call_id=next(ids)) if message.role == "tool" else message
            for message in messages
        ]

    def ids(self, calls: Seq[ToolCallPart], results: Seq[Message]) -> Seq[str]:
        raise NotImplementedError


class AssignsResultsByOrder(RenamesCallIds):
    """Writes the id of the first call before the first result, and so on."""

    def ids(self, calls: Seq[ToolCallPart], results: Seq[Message]) -> Seq[str]:
        return [call.id for call, _ in zip(calls, results, strict=True)]


class IdentifiesCallsByTheirTools(RenamesCallIds):
    """Writes the name of the tool in place of the id of a call."""

    def ids(self, calls: Seq[ToolCallPart], results: Seq[Message]) -> Seq[str]:
        names = {call.id: call.name for call in calls}
        return [names[result.call_id or ""] for result in results]


class OmitsTheIdsInCalls(Changed):
    """Writes the ids of calls before results alone."""

    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        return [dataclasses.replace(m, parts=tuple(map(without_id, m.parts))) for m in messages]


def without_id(part: Part) -> Part:
    return dataclasses.replace(part, id="") if isinstance(part, ToolCallPart) else part


class TreatsTheSystemAsAUser(Changed):
    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        return [with_role(m, "user") if m.role == "system" else m for m in messages]


class TreatsToolsAsUsers(Changed):
    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        return [with_role(m, "user") if m.role == "tool" else m for m in messages]


class JoinsTurnsByNewlines(Changed):
    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        said = "\n".join(message.text for message in messages)
        shown = tuple(p for m in messages for p in m.parts if not isinstance(p, TextPart))
        return [Message("user", (*(p for p in shown if hasattr(p, "image")), TextPart(said)))]


class WritesRolesAsWords(Changed):
    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        said = "\n".join(f"{message.role}: {message.text}" for message in messages)
        return [Message("user", (TextPart(said.removeprefix("user: ")),))]


class EndsAnswersWithAnOpeningToken(MockTokenizer):
    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset({BEGIN})

    @property
    def banned_ids(self) -> frozenset[int]:
        return super().banned_ids - {BEGIN} | {END}


class FailsWithoutATurn(Changed):
    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        return [*messages[:-1], messages[-1]]


class FailsWithoutAText(Changed):
    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        assert all(message.parts[0] for message in messages)
        return messages


class OmitsToolDescriptions(Changed):
    def offered(self, tools: Any) -> Any:
        return tools and [{"function": {"name": t["function"]["name"]}} for t in tools]


class OmitsToolParameters(Changed):
    def offered(self, tools: Any) -> Any:
        kept = ("name", "description")
        return tools and [{"function": {k: t["function"][k] for k in kept}} for t in tools]


class ShowsOnlyTheFirstTool(Changed):
    def offered(self, tools: Any) -> Any:
        return tools and tools[:1]


class AllowsOnlyTheFirstTool(Changed):
    def made(self, prompt: Prompt) -> Prompt:
        if prompt.calling is None:
            return prompt
        calling = dataclasses.replace(prompt.calling, tools=prompt.calling.tools[:1])
        return dataclasses.replace(prompt, calling=calling)


class AlwaysHasACallFormat(Changed):
    def made(self, prompt: Prompt) -> Prompt:
        form = CallFormat(JsonCall(), Mark("<|call|>", CALL), Mark("<|call_end|>", CALL_END))
        return dataclasses.replace(prompt, calling=prompt.calling or Calling(form, ()))


class DropsCallArguments(Changed):
    def turns(self, messages: Seq[Message]) -> Seq[Message]:
        return [
            dataclasses.replace(
                m,
                parts=tuple(
                    dataclasses.replace(p, arguments="{}") if isinstance(p, ToolCallPart) else p
                    for p in m.parts
                ),
            )
            for m in messages
        ]


class RemovesGivenTools(Changed):
    def offered(self, tools: Any) -> Any:
        return tools and [tools.pop() for _ in range(len(tools))]


class AddsATurnToItsInput(Changed):
    def turns(self, messages: Any) -> Seq[Message]:
        if messages and messages[0].role == "system":
            messages[0:1] = [Message.of("user", messages[0].text)]
        return messages


class ParsesSpecialTextsOfUsers(MockTokenizer):
    roles: tuple[str, ...] = ("user",)

    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        made = super().prompt(messages, tools=tools, options=options)
        said = "".join(message.text for message in messages if message.role in self.roles)
        ends = (END,) * said.count("<|end|>")
        return dataclasses.replace(made, token_ids=(*made.token_ids, *ends))


class ParsesSpecialTextsOfTheSystem(ParsesSpecialTextsOfUsers):
    roles = ("system",)


class ParsesSpecialTextsOfAnswers(ParsesSpecialTextsOfUsers):
    roles = ("assistant",)


class ParsesTypedRoles(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        made = super().prompt(messages, tools=tools, options=options)
        begun = (BEGIN,) * "".join(message.text for message in messages).count("<|begin|>")
        return dataclasses.replace(made, token_ids=(*begun, *made.token_ids))


class FindsTypedPlaceholders(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        made = super().prompt(messages, tools=tools, options=options)
        num = "".join(message.text for message in messages).count("<|image|>")
        start = len(made)
        slots = [MediaSlot(start + i, start + i + 1, bytes(32), {}, 1) for i in range(num)]
        ids = (*made.token_ids, *[IMAGE] * num)
        return dataclasses.replace(made, token_ids=ids, media=(*made.media, *slots))


class ParsesSpecialTextsOfTools(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        made = super().prompt(messages, tools=tools, options=options)
        ends = (END,) * str(tools).count("<|end|>")
        return dataclasses.replace(made, token_ids=(*made.token_ids, *ends))


BELONGS = "a_result_belongs_to_the_call_that_it_names"

BROKEN = (
    Broken(
        ReturnsAnArray,
        "The ids of a prompt are plain integers.",
        "a_prompt_without_images_has_no_slots",
    ),
    Broken(
        InventsASlot,
        "There is exactly one slot for each medium.",
        "a_prompt_without_images_has_no_slots",
    ),
    Broken(
        DropsTheSystem,
        "System text is in the prompt.",
        "a_text_of_any_role_is_in_the_prompt_or_refused",
    ),
    Broken(
        DropsResults,
        "Tool results are in the prompt.",
        "a_text_of_any_role_is_in_the_prompt_or_refused",
    ),
    Broken(
        DropsItsOwnAnswers,
        "Earlier answers are in the prompt.",
        "a_text_of_any_role_is_in_the_prompt_or_refused",
    ),
    Broken(
        KeepsOnlyTheFirstText,
        "Every part of a turn is in the prompt.",
        "each_text_of_a_turn_is_in_the_prompt",
    ),
    Broken(
        SortsTexts, "The parts of a turn keep their order.", "each_text_of_a_turn_is_in_the_prompt"
    ),
    Broken(
        IgnoresRoles,
        "The prompt states the role of each turn.",
        "roles_are_in_the_prompt_or_refused",
    ),
    Broken(
        CachesPromptsByTheirTexts,
        "Earlier prompts do not change a prompt.",
        "roles_are_in_the_prompt_or_refused",
    ),
    Broken(
        TreatsTheSystemAsAUser,
        "A system turn differs from a user turn.",
        "roles_are_in_the_prompt_or_refused",
    ),
    Broken(
        TreatsToolsAsUsers,
        "A tool result differs from a user turn.",
        "roles_are_in_the_prompt_or_refused",
    ),
    Broken(
        JoinsTurnsByNewlines,
        "A typed newline does not start a turn.",
        "no_typed_text_is_another_turn",
    ),
    Broken(
        WritesRolesAsWords, "A typed role does not start a turn.", "no_typed_text_is_another_turn"
    ),
    Broken(
        EndsAnswersWithAnOpeningToken,
        "eos_ids are the tokens that end an answer.",
        "an_earlier_answer_ends_as_answers_do",
    ),
    Broken(
        FailsWithoutATurn,
        "An invalid conversation is refused with a RequestError.",
        "odd_conversations_are_taken_or_refused",
        raises=(IndexError,),
    ),
    Broken(
        FailsWithoutAText,
        "A turn may be empty.",
        "odd_conversations_are_taken_or_refused",
        raises=(IndexError,),
    ),
    Broken(
        OmitsToolDescriptions,
        "The description of a tool is in the prompt.",
        "tools_are_in_the_prompt_or_refused",
    ),
    Broken(
        OmitsToolParameters,
        "The parameters of a tool are in the prompt.",
        "tools_are_in_the_prompt_or_refused",
    ),
    Broken(
        ShowsOnlyTheFirstTool, "Every tool is in the prompt.", "tools_are_in_the_prompt_or_refused"
    ),
    Broken(
        AllowsOnlyTheFirstTool,
        "An answer may call every tool.",
        "only_offered_tools_have_a_call_format",
    ),
    Broken(
        AlwaysHasACallFormat,
        "Without tools, a prompt has no call format.",
        "only_offered_tools_have_a_call_format",
    ),
    Broken(
        DropsCallArguments,
        "The arguments of a call are in the prompt.",
        "calls_of_tools_are_in_the_prompt_or_refused",
    ),
    Broken(OmitsTheIdsOfCalls, "A prompt shows which call each result belongs to.", BELONGS),
    Broken(OmitsTheIdsInCalls, "The ids of calls may come in any order.", BELONGS),
    Broken(AssignsResultsByOrder, "Results may come in any order.", BELONGS),
    Broken(IdentifiesCallsByTheirTools, "A tool may be called twice, with a result each.", BELONGS),
    Broken(
        RemovesGivenTools,
        "The given tools are not modified.",
        "its_inputs_are_not_modified",
    ),
    Broken(AddsATurnToItsInput, "The given turns are not modified.", "its_inputs_are_not_modified"),
    Broken(
        ParsesSpecialTextsOfUsers,
        "User text never becomes a control token.",
        "typed_special_texts_do_not_change_the_structure_of_a_prompt",
    ),
    Broken(
        ParsesSpecialTextsOfTheSystem,
        "System text never becomes a control token.",
        "typed_special_texts_do_not_change_the_structure_of_a_prompt",
    ),
    Broken(
        ParsesSpecialTextsOfAnswers,
        "Text of earlier answers never becomes a control token.",
        "typed_special_texts_do_not_change_the_structure_of_a_prompt",
    ),
    Broken(
        ParsesTypedRoles,
        "No typed text becomes any special token, role tokens included.",
        "typed_special_texts_do_not_change_the_structure_of_a_prompt",
    ),
    Broken(
        FindsTypedPlaceholders,
        "Images are placed by structure, not by searching for a string.",
        "typed_placeholders_make_no_image_slot",
    ),
    Broken(
        ParsesSpecialTextsOfTools,
        "No string of a tool definition becomes a control token.",
        "no_string_of_a_tool_changes_the_structure_of_a_prompt",
    ),
)
