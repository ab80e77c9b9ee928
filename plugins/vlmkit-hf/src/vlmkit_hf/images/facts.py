"""The properties of a family's processor that are the same for every image.

They are read from transformers' processor, or from a saved text side.
"""

import hashlib
import inspect
import json
import logging
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import PIL.Image
from msgspec import Meta

log = logging.getLogger(__name__)

TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
Word = Annotated[str, Meta(max_length=2**10)]
Options = Annotated[dict[Word, Any], Meta(max_length=2**8)]

_FEATURE_KEYS = ("image_token_id", "image_token_index", "image_patch_id")
_PLACEHOLDER_KEYS = (*_FEATURE_KEYS, "video_token_id", "video_token_index", "audio_token_id")
_OLD_NAMES = "return_legacy_image_output"


class ImageFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The properties of one processor.

    Attributes:
        placeholder: the text that stands for an image.
        options: the arguments of its image processor.
        own_options: its own additional arguments.
        feature_id: the token that stands for one image feature.
        feature_token: the text of that token.
        image_ids: tokens with the token type of an image.
        types_tokens: whether the model takes token types.
        banned_ids: the placeholder tokens of images, video and sound.
        control_tokens: the added tokens, by text, that the processor writes.
        input_names: the names of the arrays that the model takes.
        fingerprint: a hex digest that changes whenever the arrays could change.
        lays_out: whether it changes the whole text.
        needs_image: whether it refuses text without an image.
        leads: whether the image stands before the begin-of-sequence token; there can be only one.
        begins_with: the token that the processor itself puts before a text; may be empty.
        spaced_after: the token that needs a space before a letter; see :mod:`.processors.parts`.
        has_sizes: whether requests can limit the size of an image.
    """

    placeholder: Word
    options: Options
    own_options: Options
    feature_id: TokenId
    feature_token: Word
    image_ids: Annotated[tuple[TokenId, ...], Meta(max_length=2**10)]
    types_tokens: bool
    banned_ids: Annotated[tuple[TokenId, ...], Meta(max_length=2**10)]
    control_tokens: Annotated[tuple[Word, ...], Meta(max_length=2**12)]
    input_names: Annotated[tuple[Word, ...], Meta(max_length=2**6)]
    fingerprint: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    lays_out: bool
    needs_image: bool
    leads: bool = False
    begins_with: Word = ""
    spaced_after: Word = ""
    has_sizes: bool = True


def read_facts(processor: Any, config: Mapping[str, Any]) -> ImageFacts:
    """Read the properties of a processor of transformers.

    Args:
        processor: see :func:`vlmkit_hf.images.processors.loading.load_processor`.
        config: the model's config.
    """
    merged = processor._merge_kwargs(  # noqa: SLF001 - the family's defaults, as its call has them
        tokenizer_init_kwargs=processor.tokenizer.init_kwargs, return_tensors="np"
    )
    options = {
        **merged["images_kwargs"],
        "return_tensors": "np",
        **_current_names_option(processor),
    }
    needs_image = _refuses_plain_text(processor)
    own_id = written_token(processor)
    feature_id = stated_token(config)
    if feature_id is None:
        feature_id = family_token(config)
    if feature_id is None:
        feature_id = own_id
    banned = {config.get(key) for key in _PLACEHOLDER_KEYS} | {own_id}
    for kind in ("image_token_ids", "video_token_ids", "audio_token_ids"):
        banned |= set(getattr(processor, kind, None) or ())
    placeholder = placeholder_of(processor)
    wanted = set(processor.model_input_names) - set(processor.tokenizer.model_input_names)
    return ImageFacts(
        placeholder=placeholder,
        options=options,
        own_options={name: merged[name] for name in _argument_names(processor) if name in merged},
        feature_id=feature_id,
        feature_token=_text_of(processor, feature_id),
        image_ids=tuple(i for i in processor.image_token_ids if i is not None),
        types_tokens=bool(merged.get("return_mm_token_type_ids")),
        banned_ids=tuple(sorted(int(i) for i in banned if i is not None)),
        control_tokens=tuple(sorted(_control_tokens(processor))),
        input_names=tuple(sorted(wanted - set(processor.unused_input_names))),
        fingerprint=_fingerprint(processor, options).hex(),
        lays_out=apply_layout(processor, "x" + placeholder, 1) is not None,
        needs_image=needs_image,
        leads=getattr(processor, "image_leads", False),
        begins_with="" if needs_image else _beginning(processor),
        spaced_after=getattr(processor, "spaced_after", ""),
    )


def stated_token(config: Mapping[str, Any]) -> int | None:
    """Return the feature token that a config states; None if it states none."""
    found = stated_field(config)
    return None if found is None else found[1]


def stated_field(config: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the config field with the feature token, and the token; None if there is none."""
    tower = config.get("vision_config")
    parts = (("", config), ("vision_config.", tower if isinstance(tower, Mapping) else {}))
    found = ((place + key, part.get(key)) for place, part in parts for key in _FEATURE_KEYS)
    return next(((field, token) for field, token in found if isinstance(token, int)), None)


def family_token(config: Mapping[str, Any]) -> int | None:
    """Return transformers' default feature token of a family; None if there is none."""
    from transformers import CONFIG_MAPPING

    try:
        made = CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))
        parts = (made, getattr(made, "vision_config", None))
        found = (getattr(part, key, None) for part in parts for key in _FEATURE_KEYS)
        return next((token for token in found if isinstance(token, int)), None)
    except MemoryError:
        raise
    except Exception:  # a config class may raise anything
        log.debug("what transformers takes for an image's token is not known", exc_info=True)
        return None


def placeholder_of(processor: Any) -> str:
    """Return the text that stands for an image: a separate placeholder, if the family has one."""
    return str(getattr(processor, "image_placeholder_token", None) or processor.image_token)


def written_token(processor: Any) -> int:
    """Return the token that a processor writes for images; some do not store its id."""
    known: int | None = getattr(processor, "image_token_id", None)
    if known is None:
        known = processor.tokenizer.convert_tokens_to_ids(processor.image_token)
    return int(known)


def apply_layout(processor: Any, text: str, num_images: int) -> str | None:
    """Return a text with the processor's layout; None if the processor leaves it unchanged."""
    pictures = [grey_image(28, 28)] * num_images  # it looks only at their number
    made = processor.prepare_inputs_layout(images=pictures, text=[text], add_special_tokens=False)
    whole = _numbered(processor, made[1][0])
    return None if whole == text else whole


def _numbered(processor: Any, text: str) -> str:
    """Return a text with a number before each image, if the family numbers images."""
    if not getattr(processor, "default_use_image_id", False):
        return text
    runs = text.split(processor.image_token)
    places = [processor.image_token] * (len(runs) - 1)
    numbered = processor._prepend_local_ids([text], places, processor.image_token)  # noqa: SLF001 - no public way
    return "".join(part for pair in zip(runs, [*numbered, ""], strict=True) for part in pair)


def _beginning(processor: Any) -> str:
    """Return the token that the processor, not its tokenizer, puts before a text."""
    made = processor.prepare_inputs_layout(text=["x"])
    return str(made[1][0]).removesuffix("x")


def _current_names_option(processor: Any) -> dict[str, bool]:
    """Return the option that selects the array names of models, if there are legacy names."""
    takers = (processor._process_images, processor.image_processor.preprocess)  # noqa: SLF001 - no public way
    has_old = any(_OLD_NAMES in inspect.signature(taker).parameters for taker in takers)
    return {_OLD_NAMES: False} if has_old else {}


def _text_of(processor: Any, token_id: int) -> str:
    """Return a token's text; empty for an id beyond the vocabulary."""
    return str(processor.tokenizer.convert_ids_to_tokens(token_id) or "")


def grey_image(width: int, height: int) -> PIL.Image.Image:
    """Return a grey image."""
    return PIL.Image.new("RGB", (width, height), (120, 130, 140))


def _control_tokens(processor: Any) -> set[str]:
    """Return the added tokens in a processor's attributes, or in its code for an image."""
    added = processor.tokenizer.get_added_vocab()
    code, words = processor.replace_image_token.__code__, processor.replace_image_token.__doc__
    written = [text for text in code.co_consts if isinstance(text, str) and text != words]
    own = {value for value in vars(processor).values() if isinstance(value, str) and value in added}
    return own | {
        token for token in added if not token.isspace() and any(token in text for text in written)
    }


def _argument_names(processor: Any) -> list[str]:
    """Return the names of a processor's own arguments for images."""
    taken = inspect.signature(processor._process_images).parameters  # noqa: SLF001 - no public way
    return [name for name, it in taken.items() if it.kind is not it.VAR_KEYWORD]


def _fingerprint(processor: Any, options: Mapping[str, Any]) -> bytes:
    """Return 32 bytes that change whenever the processor's arrays could change."""
    import transformers

    content = {
        "transformers": transformers.__version__,
        "processor": type(processor).__name__,
        "image_processor": processor.image_processor.to_dict(),
        "settings": {k: v for k, v in vars(processor).items() if isinstance(v, int | float | str)},
        "options": dict(options),
    }
    written = json.dumps(content, sort_keys=True, default=str).encode()
    return hashlib.sha256(written).digest()


def _refuses_plain_text(processor: Any) -> bool:
    try:
        processor.validate_inputs(images=None, text=["x"])
    except ValueError:
        return True
    return False
