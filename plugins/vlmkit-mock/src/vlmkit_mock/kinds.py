"""The kinds of the mock's tokens, for text that it makes up."""

from string import ascii_lowercase, ascii_uppercase, digits, punctuation

from vlmkit_mock import vocabulary as v

OTHER, LOWER, UPPER, DIGIT, SEPARATOR = range(5)
WORD_KINDS = (LOWER, UPPER, DIGIT)

QUOTE, BACKSLASH = ord('"'), ord("\\")
CLOSERS = dict(zip(b"([{<", b")]}>", strict=True))
"""The closing bracket of each opening one."""

SEPARATORS = frozenset(punctuation.encode()) - {QUOTE} | {*b" \n\t"}
COMMON = frozenset(b"@.-:/ ")
_CHARS = {LOWER: ascii_lowercase, UPPER: ascii_uppercase, DIGIT: digits}
_KINDS = {token_id: kind for kind, chars in _CHARS.items() for token_id in chars.encode()}
KINDS = tuple(
    SEPARATOR if token_id in SEPARATORS else _KINDS.get(token_id, OTHER)
    for token_id in range(v.VOCAB_SIZE)
)
"""The kind of each token."""
