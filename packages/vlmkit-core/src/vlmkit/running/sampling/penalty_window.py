"""Penalties of tokens that came lately: ``repeat_last_n``."""

import numpy as np

from vlmkit.interfaces.sampler import Row
from vlmkit.running.sampling.logit_changes import LogitChanges, changes_of


def window(row: Row, num_tokens: int) -> list[int]:
    """Return the newest tokens of prompt and answer, those that are ahead as well."""
    sequence = row.sequence
    newest = [*sequence.output_ids[-num_tokens:], *row.ahead][-num_tokens:]
    num_missing = min(num_tokens - len(newest), sequence.num_prompt_tokens)
    if num_missing > 0:
        newest = [*sequence.prompt.token_ids[-num_missing:], *newest]
    return newest


def window_penalties(row: Row) -> LogitChanges:
    """Return what the three penalties do to a row, within its window of ``repeat_last_n`` tokens.

    Prompt and answer are counted alike, as llama.cpp's sampler of penalties has it.
    """
    params = row.sequence.params
    token_ids, counts = np.unique(window(row, params.repeat_last_n), return_counts=True)
    return changes_of(
        token_ids,
        factors=params.repetition_penalty,
        shifts=-(counts * params.frequency_penalty + params.presence_penalty),
    )
