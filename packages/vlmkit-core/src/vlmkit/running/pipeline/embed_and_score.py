"""Sequences that are read for their rows: what sets them apart from answers in the making.

A vector needs hidden states of the prompt. A score needs a row for each token of an answer that is
given: it is a sequence whose answer is there already, as after a preemption.
"""

from dataclasses import replace
from typing import Any

from vlmkit.checkpoints.pooling import Pooling
from vlmkit.errors import PromptTooLong, RequestError
from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.prompt import Prompt, Span
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.types.prompt_tokens import texts_between
from vlmkit.types.request import Request


def check_task(request: Request, limits: EngineLimits) -> None:
    """Refuse a request whose parts do not belong together, or that the engine cannot serve.

    Raises:
        RequestError: it is one.
    """
    if request.task != "score" and request.continuations:
        raise RequestError(
            "continuations are what a request for scores has, and no other", param="continuations"
        )
    if request.task != "generate" and request.constraint is not None:
        raise RequestError("only an answer keeps to a constraint", param="constraint")
    if request.task == "embed" and not limits.hidden_size:
        raise RequestError(
            "this model gives no embeddings: its engine hands out no hidden states",
            hint='choose another engine, such as engine.use = "torch"',
        )


def to_embed(prompt: Prompt, pooling: Pooling, limits: EngineLimits) -> dict[str, Any]:
    """Return the fields of a sequence whose hidden states are pooled.

    Raises:
        PromptTooLong: the text does not fit.
    """
    if len(prompt) >= limits.max_sequence_tokens:
        raise PromptTooLong(
            limits.max_sequence_tokens, f"your text resulted in {len(prompt)} tokens", param="text"
        )
    return {"task": "embed", "wanted": pooling.rows(len(prompt))}


def to_score(
    request: Request, prompt: Prompt, tokenizer: Tokenizer, limits: EngineLimits
) -> list[dict[str, Any]]:
    """Return the fields of a sequence for each continuation, or text of the prompt itself.

    Raises:
        RequestError: one is empty, does not fit or has a token that the model does not know.
    """
    if not request.continuations:
        return _own(prompt, limits)
    made = []
    for index, said in enumerate(request.continuations):
        where = f"continuations[{index}]"
        given = tuple(tokenizer.encode(said) if isinstance(said, str) else said)
        if not given:
            raise RequestError(f"{where} has no tokens", param=where)
        if not (min(given) >= 0 and max(given) < limits.vocab_size):
            raise RequestError(f"{where} has a token that the model does not know", param=where)
        num_tokens = len(prompt) + len(given)
        if num_tokens > limits.max_sequence_tokens:
            problem = f"prompt and continuation resulted in {num_tokens} tokens"
            raise PromptTooLong(limits.max_sequence_tokens, problem, param=where)
        made.append(_behind(prompt, given))
    return made


def _own(prompt: Prompt, limits: EngineLimits) -> list[dict[str, Any]]:
    """Return the fields of a sequence for each text of a prompt, behind all that is before it.

    What stands in the place of media has no row of its own: no text is chosen there.
    """
    most = limits.max_sequence_tokens
    if len(prompt) > most:
        raise PromptTooLong(most, f"your messages resulted in {len(prompt)} tokens")
    made = []
    for start, stop in texts_between(len(prompt), ((m.start, m.stop) for m in prompt.media)):
        given = prompt.token_ids[start:stop]
        if max(given) >= limits.vocab_size:
            raise RequestError("the prompt has a token that the model never says", param="messages")
        media = tuple(slot for slot in prompt.media if slot.stop <= start)
        before = replace(prompt, token_ids=prompt.token_ids[:start], media=media)
        made.append({"prompt": before, **_behind(before, given)})
    if not made:
        raise RequestError("the prompt has no token that could be scored", param="messages")
    return made


def _behind(prompt: Prompt, given: tuple[int, ...]) -> dict[str, Any]:
    """Return the fields of a sequence that scores tokens behind a prompt."""
    last = len(prompt) - 1
    return {
        "task": "score",
        "wanted": Span(last, last + len(given)),
        "given": given,
        "output_ids": list(given[:-1]),
    }
