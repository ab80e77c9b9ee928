"""Hostile values of growing size: for each declared field, functions from a size to a value.

A field of a new type has no generator. Neither has an unbounded text that ``MEANINGS`` does not
list. A test fails until ``MEANINGS`` states the hostile values of such a field.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from attack import files, grammars
from attack.bodies import Bodies, Verbatim
from attack.declared import Field

LONG = 2048  # a text that may be longer has a meaning that is listed


class Growth(NamedTuple):
    """Values of one shape.

    Attributes:
        name: of the shape.
        sizes: that are tried, in order.
        make: returns the value of a size.
    """

    name: str
    sizes: Sequence[int]
    make: Callable[[int], Any]


def doubling(first: int, last: int, factor: int = 2) -> tuple[int, ...]:
    """Return sizes from the first to the last."""
    sizes = [first]
    while sizes[-1] * factor <= last:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes)


PIECES = {
    "letters": "a",
    "spaces": " ",
    "combining marks": "\u0301",
    "control tokens": "<|im_end|>",
    "digits": "7",
    "brackets": "[",
    "emoji": "\U0001f469\u200d\U0001f469\u200d\U0001f467",
    "Han": "\u4e2d",
    "words": "the quick brown fox ",
    "line breaks": "\n",
    "zero bytes": "\0",
}
TEXT_SIZES = doubling(2**14, 2**20, 4)
LABEL_SIZES = doubling(2**6, 2**14, 4)


def repeated(piece: str, size: int) -> str:
    """Return a text of at most so many bytes of UTF-8."""
    return piece * (size // len(piece.encode(errors="surrogatepass")))


def _of(name: str, grown: grammars.Grown, sizes: Sequence[int]) -> list[Growth]:
    return [Growth(f"{name}: {shape}", sizes, make) for shape, make in grown.items()]


def prose() -> list[Growth]:
    """Return texts that a tokenizer reads."""
    made = [
        Growth(name, TEXT_SIZES, functools.partial(repeated, piece))
        for name, piece in PIECES.items()
    ]
    escaped = Growth(
        "escapes", TEXT_SIZES, lambda size: Verbatim(b'"' + b"\\u0041" * (size // 6) + b'"')
    )
    return [*made, escaped]


def _as_url(make: Callable[[int], bytes], size: int) -> str:
    return files.data_url(make(size))


def _as_base64(make: Callable[[int], bytes], size: int) -> str:
    return files.in_base64(make(size))


def media(wrap: Callable[[Callable[[int], bytes], int], str]) -> list[Growth]:
    """Return files in texts."""
    sizes = {"IMAGES": doubling(2**16, 2**24, 4), "PARTS": doubling(2**4, 2**12, 4)}
    sizes |= {"PDFS": doubling(2**4, 2**14, 4)}
    made = [
        # Noise takes as many bytes as pixels: more than a body may have, above.
        Growth(
            name,
            sizes[table][:-1] if "noise" in name else sizes[table],
            functools.partial(wrap, make),
        )
        for table in sizes
        for name, make in getattr(files, table).items()
    ]
    forms = Growth("PDF forms", (4, 8, 16, 32), functools.partial(wrap, files.pdf_forms))
    texts = [
        Growth(f"base64: {name}", TEXT_SIZES, functools.partial(repeated, piece))
        for name, piece in {"A": "AAAA", "spaces": "AA AA\n", "pads": "=", "percent": "%41"}.items()
    ]
    return [*made, forms, *texts]


def urls() -> list[Growth]:
    """Return URLs, of files and of the network."""
    heads = {"host": "https://", "path": "https://example.com/", "type": "data:"}
    return [
        *media(_as_url),
        *(
            Growth(f"URL: {name}", TEXT_SIZES, lambda size, head=head: head + "a." * (size // 2))
            for name, head in heads.items()
        ),
    ]


def arguments() -> list[Growth]:
    """Return JSON texts of tool calls."""
    return [
        Growth("JSON: depth", TEXT_SIZES, lambda size: "[" * (size // 2) + "]" * (size // 2)),
        Growth(
            "JSON: keys", TEXT_SIZES, lambda n: "{" + ",".join('"a":0' for _ in range(n // 6)) + "}"
        ),
        Growth("JSON: number", TEXT_SIZES, lambda size: "7" * size),
        Growth("JSON: exponent", TEXT_SIZES, lambda n: "[" + "1e9," * (n // 4) + "1]"),
        Growth("JSON: text", TEXT_SIZES, lambda size: '{"a":"' + "\\u0041" * (size // 6) + '"}'),
    ]


def pages() -> list[Growth]:
    """Return page ranges."""
    return [Growth("pages", doubling(2**4, 2**10), lambda n: ",".join(["1"] * (n // 2)))]


def schemas() -> list[Growth]:
    """Return JSON Schemas, and values that are none."""
    return [
        *_of("schema", grammars.SCHEMAS, doubling(2**3, 2**17, 4)),
        Growth("big multipleOf", doubling(2**20, 2**62, 2**6), grammars.SCHEMAS["multipleOf"]),
        *values(),
    ]


def values() -> list[Growth]:
    """Return JSON values of any shape."""
    sizes = doubling(2**6, 2**16, 4)
    return [
        Growth("lists in lists", sizes, lambda n: Verbatim(b"[" * n + b"]" * n)),
        Growth("objects in objects", sizes, lambda n: Verbatim(b'{"a":' * n + b"0" + b"}" * n)),
        Growth("keys", sizes, lambda n: {f"key {number}": number for number in range(n)}),
        Growth("text", sizes, lambda n: {"a": "a" * n}),
        Growth("key text", sizes, lambda n: {"a" * n: 1}),
        Growth("numbers", sizes, lambda n: {"a": [1] * n}),
        Growth("digits", sizes, lambda n: Verbatim(b'{"a":' + b"7" * n + b"}")),
    ]


def regexes() -> list[Growth]:
    """Return regular expressions."""
    return [
        *_of("regex", grammars.REGEXES, doubling(2**3, 2**15, 4)),
        Growth("big repeat", doubling(2**20, 2**62, 2**6), grammars.REGEXES["a{n}"]),
    ]


def larks() -> list[Growth]:
    """Return Lark grammars."""
    return _of("Lark", grammars.LARKS, doubling(2**3, 2**13, 4))


def choices() -> list[Growth]:
    """Return lists of texts to choose from."""
    return _of("choice", grammars.CHOICES, doubling(2**3, 2**15, 4))


def uploads() -> list[Growth]:
    """Return files that are uploaded."""
    return [
        Growth("lines", doubling(2**6, 2**14, 4), files.lines),
        Growth("zero bytes", TEXT_SIZES, lambda size: b"\0" * size),
        Growth("boundaries", TEXT_SIZES, lambda size: b"\r\n--attack-boundar" * (size // 18)),
        Growth("image", doubling(2**16, 2**22, 4), functools.partial(files.image, "PNG")),
    ]


MEANINGS: Mapping[str, Callable[[], list[Growth]]] = {
    **dict.fromkeys(
        [
            "content",
            "context",
            "data_1",
            "data_2",
            "description",
            "documents",
            "input",
            "instruction",
            "instructions",
            "items",
            "output",
            "prompt",
            "queries",
            "query",
            "reasoning",
            "reasoning_content",
            "signature",
            "stop",
            "stop_sequences",
            "system",
            "text",
            "text_1",
            "text_2",
            "thinking",
            "title",
            "prediction",
            "prompt_cache_options",
            "error",
            "purpose",
            "page",
            "after",
            "after_id",
            "before_id",
            "model",
        ],
        prose,
    ),
    **dict.fromkeys(
        ("schema", "format", "json", "guided_json", "parameters", "input_schema"), schemas
    ),
    **dict.fromkeys(
        [
            "chat_template_kwargs",
            "mm_processor_kwargs",
            "input_examples",
            "params",
            "thread",
            "metadata",
        ],
        values,
    ),
    **dict.fromkeys(("regex", "guided_regex"), regexes),
    **dict.fromkeys(("grammar", "guided_grammar"), larks),
    **dict.fromkeys(("choice", "guided_choice"), choices),
    **dict.fromkeys(("image", "url", "image_url", "file_url", "image_urls"), urls),
    **dict.fromkeys(("data", "file_data", "images"), lambda: media(_as_base64)),
    "arguments": arguments,
    "pages": pages,
    "file": uploads,
}
"""What fields of these names are read as."""

OPEN_KINDS = ("any", "object")


def is_open(field: Field) -> bool:
    """Whether a schema bounds neither the length nor the shape of a field."""
    schema = field.schema
    if field.where in ("path", "header") or field.kind in ("flag", "choice"):
        return False
    if field.kind == "text":
        return "pattern" not in schema and schema.get("maxLength", LONG + 1) > LONG
    if field.kind == "any":
        return "maxLength" not in schema
    return field.kind == "object" and not {"properties", "additionalProperties"} & {*schema}


def lacks_meaning(field: Field) -> bool:
    """Whether ``MEANINGS`` has no hostile values for an unbounded field."""
    return is_open(field) and field.name not in MEANINGS


def growths(field: Field, bodies: Bodies) -> list[Growth]:
    """Return how a field's value grows; empty for a field that takes one of a few values.

    Args:
        field: a declared field.
        bodies: gives samples of items.
    """
    if field.kind in ("flag", "choice"):
        return []
    if is_open(field):
        return _of_open(field)
    component_names = {"text": _labels, "any": _labels, "number": _numbers}
    if field.kind in component_names:
        return component_names[field.kind](field)
    if field.kind == "list":
        if field.name in ("choice", "guided_choice"):
            return choices()
        return _lists(field, bodies)
    return _keys(field)


def _of_open(field: Field) -> list[Growth]:
    meant = MEANINGS[field.name]() if field.name in MEANINGS else [*prose(), *values()]
    if field.where == "query":
        return [Growth(g.name, LABEL_SIZES, g.make) for g in meant[:3]]
    if field.name == "input" and field.kind == "any":
        return values()
    if field.kind == "any" and MEANINGS.get(field.name) is prose:
        return [*meant, *values()]
    return meant


def _labels(field: Field) -> list[Growth]:
    longest = field.schema.get("maxLength", 2**12)
    sizes = doubling(max(1, longest // 4), max(2**16, longest * 4), 8)
    if field.where in ("path", "header", "query"):
        sizes = LABEL_SIZES
    if field.where == "header":
        return [Growth("letters", sizes, functools.partial(repeated, "a"))]
    names = ("letters", "spaces", "combining marks", "control tokens")
    return [Growth(n, sizes, functools.partial(repeated, PIECES[n])) for n in names]


def _numbers(field: Field) -> list[Growth]:
    if field.where != "json":
        return [Growth("value", doubling(1, 2**40, 2**8), str)]
    return [
        Growth("value", doubling(1, 2**66, 2**6), int),
        Growth("digits", doubling(2**4, 2**14, 4), lambda n: Verbatim(b"9" * n)),
    ]


def _lists(field: Field, bodies: Bodies) -> list[Growth]:
    sizes = doubling(2**6, 2**16, 4)

    def same(size: int) -> list[Any]:
        return bodies.item(field) * size

    def different(size: int) -> list[Any]:
        (item,) = bodies.item(field)
        return [f"{item}{n}" if isinstance(item, str) else item for n in range(size)]

    return [Growth("same items", sizes, same), Growth("different items", sizes, different)]


def _keys(field: Field) -> list[Growth]:
    sizes = doubling(2**6, 2**16, 4)
    value = 1 if field.name == "logit_bias" else "1"
    return [Growth("keys", sizes, lambda n: {str(number): value for number in range(n)})]
