"""The answer of no tokens, where a prompt is only echoed."""

from vlmkit.types.completion import Choice, Chunk, Completion, Timings, Usage


class EmptyStream:
    """Says nothing, for each choice, and is over at once.

    Args:
        num_choices: how many.
        prompt_tokens: of the prompts.
    """

    def __init__(self, num_choices: int, prompt_tokens: int) -> None:
        self.usage = Usage(prompt_tokens)
        self.timings = Timings()
        self._num_choices = num_choices
        self._is_read = False

    async def next_chunks(self) -> list[Chunk]:
        """Return the end of every choice, and then nothing more."""
        if self._is_read:
            return []
        self._is_read = True
        return [Chunk(index, finish_reason="length") for index in range(self._num_choices)]

    async def aresult(self) -> Completion:
        """Return choices without text."""
        choices = [Choice(finish_reason="length") for _ in range(self._num_choices)]
        return Completion(choices, self.usage, self.timings)

    def abort(self) -> None:
        """Do nothing: it is over."""
