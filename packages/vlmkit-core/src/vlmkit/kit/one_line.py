"""Shortens foreign text to one line that is safe to print on a terminal.

Names, versions and messages of plugins and libraries may be long, have many lines, or contain
terminal escape sequences.
"""

MOST_CHARS = 500


def one_line(text: str, most_chars: int = MOST_CHARS) -> str:
    """Return a text as one line without unprintable characters, cut to ``most_chars``."""
    words = " ".join(text[: 8 * most_chars].split())
    seen = "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in words)
    return seen if len(seen) <= most_chars else f"{seen[:most_chars]}..."


def text_of(error: BaseException) -> str:
    """Return an error's text in one line, even if its class fails to produce it."""
    try:
        return one_line(str(error))
    except Exception as problem:  # noqa: BLE001 - foreign code may raise anything
        return f"its text cannot be shown: {one_line(type(problem).__name__)}"


def named(error: BaseException) -> str:
    """Return an error's type and text in one line, for the owner of this machine."""
    text = text_of(error)
    kind = one_line(type(error).__name__)
    return f"{kind}: {text}" if text else kind
