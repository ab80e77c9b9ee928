"""Sequences that embed or score a text: the arguments by which they differ from answers.

An embedding needs hidden states of the prompt. A score needs a row of logits for each token of a
given answer, so its sequence has its answer from the start, as after a preemption.
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
    """Check that a request's fields fit its task, and that the engine can serve it.

    Raises:
        RequestError: they do not, or it cannot.
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
    """Return the arguments of a sequence whose hidden states are pooled.

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
    """Return the arguments of a sequence for each continuation, or for each text of the prompt.

    Raises:
        RequestError: a continuation is empty, too long, or has a token beyond the vocabulary.
    """
    if not request.continuations:
        return _own(prompt, limits)
    scored = []
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
        scored.append(_after(prompt, given))
    return scored


def _own(prompt: Prompt, limits: EngineLimits) -> list[dict[str, Any]]:
    """Return the arguments of a sequence for each text of a prompt, after all that precedes it.

    Media tokens have no scores: no text is sampled there.
    """
    most = limits.max_sequence_tokens
    if len(prompt) > most:
        raise PromptTooLong(most, f"your messages resulted in {len(prompt)} tokens")
    scored = []
    for start, stop in texts_between(len(prompt), ((m.start, m.stop) for m in prompt.media)):
        given = prompt.token_ids[start:stop]
        if max(given) >= limits.vocab_size:
            raise RequestError("the prompt has a token that the model never says", param="messages")
        media = tuple(slot for slot in prompt.media if slot.stop <= start)
        before = replace(prompt, token_ids=prompt.token_ids[:start], media=media)
        scored.append({"prompt": before, **_after(before, given)})
    if not scored:
        raise RequestError("the prompt has no token that could be scored", param="messages")
    return scored


def _after(prompt: Prompt, given: tuple[int, ...]) -> dict[str, Any]:
    """Return the arguments of a sequence that scores tokens after a prompt."""
    last = len(prompt) - 1
    return {
        "task": "score",
        "wanted": Span(last, last + len(given)),
        "given": given,
        "output_ids": list(given[:-1]),
    }
