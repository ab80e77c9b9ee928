"""The vision side of a model in two GGUF files alone: its config and image processor, by headers.

A row of ``KINDS`` per kind of projector. Rows exist where every number that changes answers is a
field of a file, or constant in llama.cpp and in the checkpoints of the kind. Other kinds are
rejected by name: their files leave out limits of the sizes of images. Reads no weight.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vlmkit_quantized.errors import FormatError
from vlmkit_quantized.gguf_metadata import Metadata
from vlmkit_quantized.gguf_projector import kind_of
from vlmkit_quantized.gguf_towers import GELU, POOLED, SILU

Config = dict[str, Any]
COLOURS = 3
MAX_SIDE = 8192  # pixels
BILINEAR, BICUBIC, LANCZOS = 2, 3, 1
FOLDER = (
    "put config.json, the tokenizer and preprocessor_config.json of the original model into "
    "the folder of the files, and name the folder"
)


@dataclass(frozen=True, slots=True)
class Side:
    """The vision side of a model.

    Attributes:
        config: fields of ``config.json``, with ``vision_config``.
        image_processor: fields of ``preprocessor_config.json``.
        processor: fields of ``processor_config.json``.
        tokens: named tokens of ``tokenizer_config.json``.
        text_type: the ``model_type`` of the decoder, if the tower decides it.
    """

    config: Config
    image_processor: Config
    processor: Config
    tokens: Mapping[str, str]
    text_type: str = ""


@dataclass(frozen=True, slots=True)
class Pair:
    """The two files of a model.

    Attributes:
        model: the header of the decoder's file.
        tower: the header of the tower's file.
        tokens: the numbers of tokens.
    """

    model: Metadata
    tower: Metadata
    tokens: Mapping[str, int]

    def token(self, text: str) -> int:
        """Return the number of a token.

        Raises:
            FormatError: the vocabulary lacks it.
        """
        if (number := self.tokens.get(text)) is None:
            raise self.model.error(f"has no token {text!r}, which its vision tower needs")
        return number

    def vision(self, key: str) -> str:
        """Return the name of a field of the tower."""
        return f"clip.vision.{key}"

    def size(self, key: str, default: int | None = None) -> int:
        """Return a positive number of the tower.

        Raises:
            FormatError: it is absent, or something else.
        """
        return self.tower.size(self.vision(key), default)

    def tower_sizes(self) -> Config:
        """Return common fields of ``vision_config``.

        Raises:
            FormatError: one is absent or impossible.
        """
        self.require_multiple("embedding_length", "attention.head_count")
        if (image := self.size("image_size")) > MAX_SIDE:
            raise self.tower.error(f"has images of {image} pixels; {MAX_SIDE} are supported")
        return {
            "hidden_size": self.size("embedding_length"),
            "intermediate_size": self.size("feed_forward_length"),
            "num_hidden_layers": self.size("block_count"),
            "num_attention_heads": self.size("attention.head_count"),
            "image_size": image,
            "patch_size": self.size("patch_size"),
        }

    def tokens_on_a_side(self, pooled: int) -> int:
        """Return how many tokens a side of an image of the size in the file becomes.

        Args:
            pooled: patches on a side of a token.

        Raises:
            FormatError: the patches are no multiple of such tokens.
        """
        patches = self.size("image_size") // self.size("patch_size")  # pixels beyond have none
        num, rest = divmod(patches, pooled)
        if rest or not num:
            raise self.tower.error(
                f"has images of {patches} patches on a side ({self.vision('image_size')!r}), which "
                f"are no whole tokens of {pooled}"
            )
        return num

    def require_multiple(self, whole: str, part: str) -> None:
        """Require that a number of the tower is a multiple of another one.

        Raises:
            FormatError: it is none.
        """
        if self.size(whole) % self.size(part):
            raise self.tower.error(
                f"has {self.size(whole)} in {self.vision(whole)!r}, which is no multiple of "
                f"{self.size(part)} in {self.vision(part)!r}"
            )

    def scaling(self) -> Config:
        """Return how pixels are scaled.

        Raises:
            FormatError: numbers are absent, or are none.
        """
        stated = {}
        for name in ("image_mean", "image_std"):
            stated[name] = self.tower.reals(self.vision(name), COLOURS)
        if not all(each > 0 for each in stated["image_std"]):
            raise self.tower.error(f"needs numbers above zero in {self.vision('image_std')!r}")
        return {
            "do_convert_rgb": True,
            "do_resize": True,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            **stated,
        }


def _gemma3(pair: Pair) -> Side:
    vision = pair.tower_sizes()
    num = pair.tokens_on_a_side(pair.size(FACTOR, POOLED)) ** 2
    config = {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "vision_config": vision | _siglip(pair, "siglip_vision_model") | {"vision_use_head": False},
        "mm_tokens_per_image": num,
        "image_token_index": pair.token("<image_soft_token>"),
        "boi_token_index": pair.token("<start_of_image>"),
        "eoi_token_index": pair.token("<end_of_image>"),
    }
    size = {"height": vision["image_size"], "width": vision["image_size"]}
    images = {
        "image_processor_type": "Gemma3ImageProcessor",
        "processor_class": "Gemma3Processor",
        "size": size,
        "resample": BILINEAR,
        "do_pan_and_scan": None,
        "image_seq_length": num,
    }
    named = {
        "image_token": "<image_soft_token>",
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
    }
    return Side(config, images, {"image_seq_length": num}, named, "gemma3_text")


def _siglip(pair: Pair, model_type: str) -> Config:
    epsilon = pair.tower.real(pair.vision("attention.layer_norm_epsilon"))
    if pair.tower.file.fields.get(f"clip.{GELU}") is not True:
        raise pair.tower.error(f"has another activation than 'clip.{GELU}', not supported")
    return {
        "model_type": model_type,
        "layer_norm_eps": epsilon,
        "hidden_act": "gelu_pytorch_tanh",
    }


FACTOR = "projector.scale_factor"


def _idefics3(pair: Pair) -> Side:
    vision, factor = pair.tower_sizes(), pair.size(FACTOR)
    side = pair.tokens_on_a_side(factor)
    if not pair.tower.has(pair.vision("preproc_image_size")):
        raise pair.tower.error(
            "does not state the size of whole images ('clip.vision.preproc_image_size'), as files "
            "of older converters do not",
            hint=FOLDER,
        )
    if (whole := pair.size("preproc_image_size")) > MAX_SIDE:
        raise pair.tower.error(
            f"makes images of {whole} pixels ('clip.vision.preproc_image_size'); {MAX_SIDE} are "
            "supported"
        )
    config = {
        "model_type": "smolvlm",
        "architectures": ["SmolVLMForConditionalGeneration"],
        "vision_config": vision | _siglip(pair, "smolvlm_vision"),
        "scale_factor": factor,
        "image_token_id": pair.token("<image>"),
    }
    for token in ("<fake_token_around_image>", "<global-img>", "<row_1_col_1>"):
        pair.token(token)
    images = {
        "image_processor_type": "SmolVLMImageProcessor",
        "processor_class": "SmolVLMProcessor",
        "size": {"longest_edge": whole},
        "max_image_size": {"longest_edge": vision["image_size"]},
        "resample": LANCZOS,
        "do_image_splitting": True,
        "do_pad": True,
    }
    return Side(config, images, {"image_seq_len": side**2}, {}, "llama")


def _pixtral(pair: Pair) -> Side:
    vision, merged = pair.tower_sizes(), pair.size("spatial_merge_size", 1)
    if vision["image_size"] < vision["patch_size"] * merged:
        raise pair.tower.error(
            "has images that are smaller than a patch ('clip.vision.image_size')"
        )
    is_merging = "mm.patch_merger.weight" in pair.tower.file.tensors
    if is_merging != (merged > 1):
        raise pair.tower.error("merges patches, and states no 'clip.vision.spatial_merge_size'")
    epsilon = pair.tower.real(pair.vision("attention.layer_norm_epsilon"))
    if not math.isclose(epsilon, EPSILON_OF_PIXTRAL, rel_tol=1e-5):
        raise pair.tower.error(f"has norms with {epsilon:g} in place of {EPSILON_OF_PIXTRAL:g}")
    flags = [name for name in (GELU, SILU) if pair.tower.file.fields.get(f"clip.{name}") is True]
    if len(flags) != 1:
        raise pair.tower.error(f"needs one of 'clip.{GELU}' and 'clip.{SILU}'")
    vision |= {"model_type": "pixtral", "hidden_act": flags[0].removeprefix("use_")}
    vision |= {"head_dim": vision["hidden_size"] // vision["num_attention_heads"]}
    vision |= {"rope_theta": pair.tower.real(pair.vision("rope.freq_base"), 1e4)}
    config: Config = {
        "model_type": "mistral3" if is_merging else "llava",
        "architectures": [f"{'Mistral3' if is_merging else 'Llava'}ForConditionalGeneration"],
        "vision_config": vision,
        "image_token_index": pair.token("[IMG]"),
        "vision_feature_layer": -1,
        "projector_hidden_act": "gelu",
        "multimodal_projector_bias": "mm.1.bias" in pair.tower.file.tensors,
    }
    config |= {"spatial_merge_size": merged} if is_merging else OF_LLAVA
    for token in ("[IMG_BREAK]", "[IMG_END]"):
        pair.token(token)
    patch = vision["patch_size"]
    images = {
        "image_processor_type": "PixtralImageProcessor",
        "processor_class": "PixtralProcessor",
        "size": {"longest_edge": vision["image_size"]},
        "patch_size": {"height": patch, "width": patch},
        "resample": BICUBIC,
    }
    processor = {"patch_size": patch, "spatial_merge_size": merged}
    return Side(config, images, processor, {}, "mistral")


EPSILON_OF_PIXTRAL = 1e-5
OF_LLAVA = {"vision_feature_select_strategy": "full", "image_seq_length": 1}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of projector.

    Attributes:
        architecture: that of the decoder's file.
        side: returns the vision side.
    """

    architecture: str
    side: Callable[[Pair], Side]


KINDS: Mapping[str, Kind] = {
    "gemma3": Kind("gemma3", _gemma3),
    "idefics3": Kind("llama", _idefics3),
    "pixtral": Kind("llama", _pixtral),
}
"""The kinds whose files determine the vision side, by ``clip.projector_type``."""


def side_of(model: Metadata, tower: Metadata) -> Side:
    """Return the vision side of a model.

    Raises:
        FormatError: the tower is of another model, or files do not determine it.
    """
    name = kind_of(tower.file, tower.name)
    if (kind := KINDS.get(name)) is None:
        raise FormatError(
            f"its vision tower {tower.name!r} is of the kind {name!r}, whose files do not "
            f"determine how images are prepared; without a folder, {', '.join(KINDS)} are read",
            hint=FOLDER,
        )
    width = model.size(model.of_model("embedding_length"))
    stated = tower.integer("clip.vision.projection_dim")
    if model.architecture != kind.architecture or stated != width:
        raise FormatError(
            f"its vision tower {tower.name!r} (kind {name!r}, {stated} numbers for a token) is of "
            f"another model than {model.name!r} (architecture {model.architecture!r}, {width})",
            hint="move it to another folder, or put the vision tower of this model there",
        )
    tokens = model.texts("tokenizer.ggml.tokens")
    pair = Pair(model, tower, {token: number for number, token in enumerate(tokens)})
    side = kind.side(pair)
    side.image_processor.update(pair.scaling())
    return side
