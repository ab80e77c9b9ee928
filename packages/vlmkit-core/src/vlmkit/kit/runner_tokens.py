"""Tokens of any runner: their bytes as a table, and their text without blocking an event loop.

Runners may have ``token_table`` and ``adetokenize``; these functions work for all others, too.
"""

import asyncio
from collections.abc import Sequence as Seq

from vlmkit.interfaces.runner import DetokenizesAsync, HasTokenTable, Runner


def token_table(runner: Runner) -> Seq[bytes]:
    """Return the bytes of every token of a runner, by token id; may take seconds.

    A process that forwards a runner sends the table once, so that ``token_bytes`` at the other end
    needs no call for each log-probability.
    """
    if isinstance(runner, HasTokenTable):
        return runner.token_table()
    return [runner.token_bytes(token_id) for token_id in range(runner.facts.limits.vocab_size)]


async def adetokenize(runner: Runner, token_ids: Seq[int]) -> str:
    """Return the text of tokens, without special tokens and without blocking the event loop.

    Raises:
        RequestError: a token is not in the vocabulary.
        EngineError: the runner cannot answer now, or has failed.
    """
    if isinstance(runner, DetokenizesAsync):
        return await runner.adetokenize(token_ids)
    return await asyncio.to_thread(runner.detokenize, token_ids)
