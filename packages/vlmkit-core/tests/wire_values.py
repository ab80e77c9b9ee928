"""Random values of every listed type of the wire codec, by the annotations of their fields."""

import io
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
import numpy as np
import PIL.Image
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from vlmkit import errors
from vlmkit.image_files.decode_cost import DecodeCost
from vlmkit.interfaces.prompt import Array
from vlmkit.types.constraint import JsonSchema, OneOf
from vlmkit.types.image import Image
from vlmkit.types.image_options import ImageOptions
from vlmkit.types.media import MediaPart
from vlmkit.types.message import Message, ReasoningPart
from vlmkit.types.pages import Pages
from vlmkit.types.request import Request
from vlmkit.types.tool_call import ToolCallPart
from vlmkit.wire.conversions import describe
from vlmkit.wire.failures import ERRORS
from vlmkit.wire.type_names import TYPES

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False)
BYTES = st.one_of(st.binary(max_size=8), st.binary(min_size=257, max_size=400))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | FLOATS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
ARRAYS = arrays.arrays(
    st.sampled_from(["f4", "f2", "i8", "u1", "?"]), arrays.array_shapes(min_side=0, max_side=5)
)


def png() -> bytes:
    content = io.BytesIO()
    PIL.Image.new("RGB", (5, 4), "red").save(content, "PNG")
    return content.getvalue()


def images() -> st.SearchStrategy[Image]:
    file = Image.open(png())
    pixels = Image.open(np.arange(60, dtype=np.uint8).reshape(4, 5, 3))
    return st.sampled_from([file, pixels, Image.of_size((70, 30))])


def failures() -> st.SearchStrategy[errors.VlmkitError]:
    def made(name: str, message: str, hint: str, param: str | None, index: int) -> Any:
        kind = ERRORS[name]
        error = kind.__new__(kind)
        errors.VlmkitError.__init__(error, message, hint=hint)
        if isinstance(error, errors.RequestError):
            error.param, error.code = param, kind.code
        if isinstance(error, errors.MediaError):
            error.index = index
        if isinstance(error, errors.QueueFull):
            error.retry_after_s = index
        if isinstance(error, errors.ConfigError) and hint:
            error.others = (errors.ConfigError(message, hint=hint),)
        return error

    return st.builds(
        made, st.sampled_from(sorted(ERRORS)), TEXTS, TEXTS, st.none() | TEXTS, NUMBERS
    )


def built(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Return values of one listed type."""
    fields = {name: of(each) for name, each in describe("", kind).fields.items()}
    if kind is Request:
        fields |= {"tool_choice": st.just("auto"), "priority": st.integers(-5, 2000)}
    if kind is Message:
        fields["call_id"] = st.none()
        said = (ReasoningPart, ToolCallPart)
        fields["parts"] = fields["parts"].map(
            lambda parts: tuple(p for p in parts if not isinstance(p, said))
        )
    if kind is ImageOptions:
        fields |= {name: st.none() | st.integers(1, 99) for name in ("max_tokens", "wanted_tokens")}
    if kind is Pages:
        fields["runs"] = st.just(((1, 3), (7, 7)))
    if kind is JsonSchema:
        fields["text"] = st.sampled_from(["true", '{"type":"object"}', '{"const":1e400}'])
    if kind is OneOf:
        fields["texts"] = st.lists(TEXTS.filter(bool), min_size=1, max_size=3).map(tuple)
    if kind.__name__ in ("Regex", "Lark"):
        name = "pattern" if kind.__name__ == "Regex" else "rules"
        fields[name] = TEXTS.filter(bool)
    if kind.__name__ == "FilePart":
        fields["max_tokens"] = st.none() | st.integers(1, 9)
    if kind is DecodeCost:
        fields = dict.fromkeys(fields, st.integers(0, 2**40))
    return st.fixed_dictionaries(fields).map(lambda values: kind(**values))


def of(annotation: Any) -> st.SearchStrategy[Any]:
    """Return values of an annotation."""
    origin, args = get_origin(annotation), get_args(annotation)
    plain = {
        int: NUMBERS,
        float: FLOATS,
        str: TEXTS,
        bool: st.booleans(),
        bytes: BYTES,
        type(None): st.none(),
        Any: JSON,
        Image: images(),
        Array: ARRAYS,
        errors.VlmkitError: failures(),
    }
    if origin is Annotated:
        return _bounded(args[0], args[1:])
    if annotation in plain:
        return plain[annotation]
    if origin is Literal:
        return st.sampled_from(args)
    if origin in (Union, types.UnionType):
        return st.one_of(*[of(each) for each in args if each is not MediaPart])
    if origin is tuple and args[-1] is not ...:
        return st.tuples(*map(of, args))
    if origin in (tuple, Sequence, list):
        container = list if origin is list else tuple
        return st.lists(of(args[0]), max_size=3).map(container)
    if origin is frozenset:
        return st.frozensets(of(args[0]), max_size=3)
    if origin in (dict, Mapping):
        return st.dictionaries(of(args[0]), of(args[1]), max_size=3)
    if origin is np.ndarray:
        return ARRAYS
    return st.deferred(lambda: built(annotation))


def _bounded(kind: Any, metas: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    """Return values within the bounds of a setting or a sampling parameter."""
    bounds = {}
    for meta in metas:
        for name in ("ge", "gt", "le", "lt", "min_length", "max_length"):
            if getattr(meta, name) is not None:
                bounds[name] = getattr(meta, name)
    low, high = bounds.get("ge", bounds.get("gt")), bounds.get("le", bounds.get("lt"))
    if kind is int:
        return st.integers(low, high if high is not None else 2**31)
    if kind is float:
        edges = {"exclude_min": "gt" in bounds, "exclude_max": "lt" in bounds}
        edges = {k: v for k, v in edges.items() if v}
        return st.floats(low, high, allow_nan=False, **edges)
    if kind is str:
        least, most = bounds.get("min_length", 0), bounds.get("max_length", 8)
        return st.text("ab ", min_size=least, max_size=min(8, most))
    sizes = of(kind)
    return sizes.filter(lambda value: len(value) >= bounds.get("min_length", 0))


VALUES = {name: built(kind) for name, kind in TYPES.items()}
VALUES["error"] = failures()


def plain(value: Any) -> Any:
    """Return what can be compared of a value: arrays and images by their content."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, Image):
        return value.state
    if isinstance(value, errors.VlmkitError):
        names = ("hint", "param", "code", "index", "keyword", "distribution", "retry_after_s")
        held = {name: getattr(value, name, None) for name in names}
        return (type(value), str(value), held, plain(getattr(value, "others", ())))
    if isinstance(value, msgspec.Struct) or hasattr(value, "__dataclass_fields__"):
        names = describe("", type(value)).fields
        return (type(value), {name: plain(getattr(value, name)) for name in names})
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value
