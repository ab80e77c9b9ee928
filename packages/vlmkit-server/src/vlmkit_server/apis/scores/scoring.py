"""Scores pairs of a query and a document with a model.

By embeddings, a score is the cosine of the angle between two vectors. By yes and no, the model is
asked whether the document matches: with the log-probabilities of both answers, the score is the
probability of ``yes`` among the two.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import numpy as np

from vlmkit.errors import PromptTooLong
from vlmkit.interfaces.runner import Runner, RunnerFacts
from vlmkit.types.completion import Completion
from vlmkit.types.demand import Demand
from vlmkit.types.message import TextPart
from vlmkit.types.prompt_options import PromptOptions
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams
from vlmkit_server.apis.scores.items import Item, merged
from vlmkit_server.apis.scores.wire import ScoreMethod
from vlmkit_server.conversation.exchange import Exchange
from vlmkit_server.exchange.named_errors import naming_fields
from vlmkit_server.gather import in_order
from vlmkit_server.http.errors import Unavailable
from vlmkit_server.interfaces.conversation import Conversation, SentMessage, SentPart

ANSWERS = ("yes", "no")
_WITHOUT_REASONING = {"enable_thinking": False, "thinking": False}


@dataclass(frozen=True, slots=True)
class Scored:
    """The scores of all pairs, and the number of tokens of all prompts."""

    scores: list[float]
    num_tokens: int


class Scorer:
    """Scores the pairs of one body; as many prompts run at once as the engine has sequences.

    The prompt of a pair is made, and its images are opened, when its turn comes. An image or a page
    of a file counts for the pixels of the body as often as it is opened. No prompt is begun once
    the sum is too large.

    Args:
        exchange: the HTTP request.
        runner: the model.
        priority: the scheduling priority of the body.
    """

    def __init__(self, exchange: Exchange, runner: Runner, priority: int) -> None:
        caller = exchange.caller
        self._exchange = exchange
        self._runner = runner
        self._budget = exchange.builder.media.budget()
        self._common: dict[str, Any] = {
            "priority": priority + caller.priority,
            "tenant": caller.tenant,
            "account": caller.account,
            "trace": caller.trace,
        }

    async def by_embedding(self, queries: Sequence[Item], documents: Sequence[Item]) -> Scored:
        """Return the cosine of each pair; each query and document is embedded once.

        Raises:
            RequestError: the model has no embeddings, or an item is wrong; the error names it.
            Unavailable: an answer was aborted.
        """
        completions = await self._all(self._embedded, [*queries, *documents])
        vectors = [_unit(each) for each in completions]
        firsts, seconds = vectors[: len(queries)], vectors[len(queries) :]
        pairs = zip(_each(firsts, len(seconds)), seconds, strict=True)
        return Scored([_cosine(a, b) for a, b in pairs], _num_tokens(completions))

    async def by_yes_no(
        self,
        queries: Sequence[Item],
        documents: Sequence[Item],
        system_prompt: str,
        instruction: str,
    ) -> Scored:
        """Return the probability of ``yes`` of each pair, among ``yes`` and ``no``.

        Args:
            queries: as many as documents, or one.
            documents: the documents.
            system_prompt: the message of the system.
            instruction: what makes a document relevant; left out if empty.

        Raises:
            RequestError: an item is wrong; the error names it.
            Unavailable: an answer was aborted.
        """

        async def judged(pair: tuple[Item, Item]) -> Completion:
            return await self._judged(pair_conversation(*pair, system_prompt, instruction))

        completions = await self._all(judged, _pairs(queries, documents))
        return Scored([_probability(each) for each in completions], _num_tokens(completions))

    async def _all(self, work: Any, items: Sequence[Any]) -> list[Completion]:
        max_at_once = self._runner.facts.limits.max_sequences
        found: list[Completion] = await in_order(work, items, max_at_once)
        return found

    async def _embedded(self, item: Item) -> Completion:
        """Embed a text as it is, and anything else as a message of a user."""
        conversation = _conversation([SentMessage("user", list(item.parts), item.path)], item.path)
        if item.is_text:
            return await self._result(conversation, task="embed", text="".join(item.texts))
        return await self._result(conversation, task="embed")

    async def _judged(self, conversation: Conversation) -> Completion:
        """Score both answers after a conversation."""
        values = _WITHOUT_REASONING if _has_variables(self._runner.facts) else {}
        return await self._result(
            conversation,
            task="score",
            continuations=ANSWERS,
            params=SamplingParams(logprobs=True),
            tool_choice="none",
            options=PromptOptions(chat_template_kwargs=values),
        )

    async def _result(self, conversation: Conversation, **fields: Any) -> Completion:
        """Compute a request; errors name the query or the document."""
        builder, facts = self._exchange.builder, self._runner.facts
        with naming_fields(conversation.field_of):
            self._budget.check()
            if "text" not in fields:
                fields["messages"] = await builder.messages(
                    conversation.messages, facts, self._exchange.caller, budget=self._budget
                )
            request = Request(**fields, **self._common)
            stream = await self._runner.asubmit(request, self._count_pages)
            completion = await stream.aresult()
        if any(choice.finish_reason == "abort" for choice in completion.choices):
            raise Unavailable("the answer was cut off", code="aborted")
        return completion

    def _count_pages(self, demand: Demand) -> None:
        """Count the images that files of a prompt became; called in any thread."""
        if demand.opened_pixels:  # prompts without files were counted before
            self._budget.count(demand.opened_pixels)


def prompted_items(
    method: ScoreMethod, queries: Sequence[Item], documents: Sequence[Item]
) -> Iterable[Item]:
    """Return the items of all prompts, in order; a pair's query is in a prompt of each document."""
    if method == "embedding":
        return [*queries, *documents]
    return chain.from_iterable(_pairs(queries, documents))


def check_size(items: Iterable[Item], max_chars: int, facts: RunnerFacts) -> None:
    """Refuse bodies that are far too long, before they cost time.

    Raises:
        PromptTooLong: all items together have more characters; names the first that exceeds them.
    """
    num_chars = 0
    for item in items:
        num_chars += item.num_chars
        if num_chars > max_chars:
            raise PromptTooLong(
                facts.limits.max_sequence_tokens,
                f"the texts of all prompts are over {max_chars} characters together",
                param=item.path,
            )


def pair_conversation(
    query: Item, document: Item, system_prompt: str, instruction: str
) -> Conversation:
    """Return the conversation that asks whether a document matches a query.

    The labels are those with which Qwen's reranking models are trained.
    """
    instructed = f"<Instruct>: {instruction}\n" if instruction else ""
    parts: list[SentPart] = [
        TextPart(f"{instructed}<Query>: "),
        *query.merged_parts,
        TextPart("\n<Document>: "),
        *document.merged_parts,
    ]
    messages = [
        SentMessage("system", [TextPart(system_prompt)], document.path),
        SentMessage("user", merged(parts), document.path),
    ]
    return _conversation(messages, document.path)


def _conversation(messages: list[SentMessage], path: str) -> Conversation:
    """Return a conversation whose errors name the item with a path."""
    names = dict.fromkeys(("messages", "text", "continuations[0]", "continuations[1]"), path)
    return Conversation(messages=messages, names=names)


def _pairs(queries: Sequence[Item], documents: Sequence[Item]) -> list[tuple[Item, Item]]:
    return list(zip(_each(queries, len(documents)), documents, strict=True))


def _each(items: Sequence[Any], num: int) -> Any:
    """Return items, or one item as often as needed."""
    return repeat(items[0], num) if len(items) == 1 else items


def _has_variables(facts: RunnerFacts) -> bool:
    return "chat_template_kwargs" in facts.options


def _unit(completion: Completion) -> Any:
    """Return the vector of a text, of length one."""
    vector = completion.choices[0].embedding
    if vector is None:
        raise Unavailable("the answer was cut off", code="aborted")
    wide = vector.astype(np.float64)
    return wide / max(float(np.linalg.norm(wide)), 1e-12)


def _cosine(one: Any, other: Any) -> float:
    """Return the cosine of vectors of length one, which rounding may bring beyond 1."""
    return min(1.0, max(-1.0, float(one @ other)))


def _probability(completion: Completion) -> float:
    """Return the probability of the first answer among the two."""
    yes, no = (
        math.fsum(sample.logprob or 0.0 for sample in choice.samples)
        for choice in completion.choices
    )
    return 1 / (1 + math.exp(min(no - yes, 700.0)))  # beyond that, the exponential overflows


def _num_tokens(completions: Sequence[Completion]) -> int:
    return sum(each.usage.prompt_tokens for each in completions)
