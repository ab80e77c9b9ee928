"""The saved settings of processors, with types and bounds."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from vlmkit_hf.images.facts import Word

Edge = Literal["height", "width", "shortest_edge", "longest_edge", "max_height", "max_width"]
Pixels = Annotated[int, Meta(ge=1, le=2**31)]
Count = Annotated[int, Meta(ge=0, le=2**16)]
Number = Annotated[float, Meta(ge=-(2**10), le=2**10)]
Colour = Annotated[tuple[Number, ...], Meta(min_length=3, max_length=3)]
Edges = Annotated[dict[Edge, Pixels], Meta(min_length=1)]
Side = Annotated[int, Meta(ge=1, le=2**14)]
Pair = tuple[Side, Side]


class ImageSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of an image processor, with the names in its file."""

    do_resize: bool | None = None
    size: Edges | None = None
    resample: Annotated[int, Meta(ge=0, le=5)] | None = None
    do_center_crop: bool | None = None
    crop_size: Edges | None = None
    do_rescale: bool | None = None
    rescale_factor: Number | None = None
    do_normalize: bool | None = None
    image_mean: Colour | None = None
    image_std: Colour | None = None
    do_convert_rgb: bool | None = None
    do_pad: bool | None = None
    patch_size: Side | Edges | None = None
    temporal_patch_size: Annotated[int, Meta(ge=1, le=16)] | None = None
    merge_size: Annotated[int, Meta(ge=1, le=64)] | None = None
    do_image_splitting: bool | None = None
    max_image_size: Edges | None = None
    return_row_col_info: bool | None = None
    crop_to_patches: bool | None = None
    min_patches: Count | None = None
    max_patches: Annotated[int, Meta(ge=1, le=2**10)] | None = None
    image_grid_pinpoints: Annotated[tuple[Pair, ...], Meta(max_length=2**10)] | None = None
    do_pan_and_scan: bool | None = None


class TextSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings for the text of an image, with the names of a processor's attributes."""

    image_token: Word
    bos_token: Word = ""
    image_seq_len: Count | None = None
    image_seq_length: Count | None = None
    num_image_tokens: Count | None = None
    num_additional_image_tokens: Count | None = None
    patch_size: Side | None = None
    downsample_rate: Annotated[str, Meta(pattern=r"^[1-9]\d{0,2}(/[1-9]\d{0,2})?\Z")] | None = None
    spatial_merge_size: Annotated[int, Meta(ge=1, le=64)] | None = None
    vision_feature_select_strategy: Word | None = None
    vision_aspect_ratio: Word | None = None
    fake_image_token: Word | None = None
    global_image_tag: Word | None = None
    global_image_token: Word | None = None
    start_image_token: Word | None = None
    end_image_token: Word | None = None
    boi_token: Word | None = None
    eoi_token: Word | None = None
    img_line_break_token: Word | None = None
    image_break_token: Word | None = None
    image_end_token: Word | None = None
    full_image_sequence: Annotated[str, Meta(max_length=2**20)] | None = None


class ProcessorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a family's processor.

    Attributes:
        words: the class name of the processor.
        pictures: the class name of its image processor.
        own: the settings for the text of an image.
        images: the settings of the image processor.
    """

    words: Word
    pictures: Word
    own: TextSettings
    images: ImageSettings
