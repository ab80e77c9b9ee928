"""Where the values of a JSON text begin and end, while it comes; checks no more than that."""


class JsonDepth:
    """How deep in a JSON text the last character stands."""

    def __init__(self) -> None:
        self.depth = 0
        self.in_string = False
        self._is_escaped = False

    def step(self, letter: str) -> None:
        """Go on by a character."""
        if self._is_escaped:
            self._is_escaped = False
        elif self.in_string:
            self._is_escaped = letter == "\\"
            self.in_string = letter != '"'
        elif letter == '"':
            self.in_string = True
        elif letter in "{[":
            self.depth += 1
        elif letter in "}]":
            self.depth -= 1
