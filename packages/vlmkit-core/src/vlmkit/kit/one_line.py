"""What others wrote, in one line that a terminal can be given.

Names, versions and messages of plugins and libraries may be long, of many lines, or hold what a
terminal takes for commands.
"""

MOST_CHARS = 500


def one_line(text: str, most_chars: int = MOST_CHARS) -> str:
    """Return text without breaks and signs that cannot be seen, and no more than so much of it."""
    words = " ".join(text[: 8 * most_chars].split())
    seen = "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in words)
    return seen if len(seen) <= most_chars else f"{seen[:most_chars]}..."


def text_of(error: BaseException) -> str:
    """Return an error's text in one line, whatever its class makes of that."""
    try:
        return one_line(str(error))
    except Exception as problem:  # noqa: BLE001 - it is code of whoever failed
        return f"its text cannot be told: {one_line(type(problem).__name__)}"


def named(error: BaseException) -> str:
    """Return an error's kind and text in one line, for the owner of this machine."""
    text = text_of(error)
    kind = one_line(type(error).__name__)
    return f"{kind}: {text}" if text else kind
