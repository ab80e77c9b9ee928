"""Layouts of the files of image processors."""

from pathlib import Path

from checkpoint_layouts.layout import POINTER, Layout, both, drop, edit, put, read, rename

IMAGES, PROCESSOR = "preprocessor_config.json", "processor_config.json"
VIDEO = "video_preprocessor_config.json"
ABSENT = f"model 'm' has no '{IMAGES}', which says how pictures are shown to it"
FETCH = "fetch it from where the model is from"


def nested(folder: Path) -> None:
    """Put the image processor's settings into the processor's, as transformers 5 saves them."""
    edit(PROCESSOR, image_processor=read(folder, IMAGES))(folder)
    drop(IMAGES)(folder)


LAYOUTS = [
    Layout(
        "LLaVA 1.5 as first published",
        both(drop(PROCESSOR), edit(IMAGES, processor_class=None)),
        base="llava",
    ),
    Layout(
        "LLaVA with a patch size and no more",
        edit(PROCESSOR, num_additional_image_tokens=None, vision_feature_select_strategy=None),
        base="llava",
    ),
    Layout("image processor inside of the processor", nested, base="llava"),
    Layout("the same, of a family with video", nested, base="qwen2_vl"),
    Layout(
        "a feature extractor",
        edit(IMAGES, image_processor_type=None, feature_extractor_type="CLIPFeatureExtractor"),
        base="llava",
    ),
    Layout(
        "a fast image processor",
        edit(IMAGES, image_processor_type="CLIPImageProcessorFast"),
        base="llava",
    ),
    Layout("sizes that are one number", edit(IMAGES, size=28, crop_size=28), base="llava"),
    Layout(
        "settings of video beside",
        edit(VIDEO, video_processor_type="Qwen2VLVideoProcessor"),
        base="qwen2_vl",
    ),
    Layout("settings of video alone", rename(IMAGES, VIDEO), ABSENT, FETCH, base="qwen2_vl"),
    Layout("no processor", drop(IMAGES, PROCESSOR), ABSENT, FETCH, base="llava"),
    Layout("no image processor", drop(IMAGES), ABSENT, FETCH, base="llava"),
    Layout("no processor around the image processor", drop(PROCESSOR), base="qwen2_vl"),
    Layout(
        "an image processor that is code",
        edit(IMAGES, auto_map={"AutoImageProcessor": "own.Own"}, image_processor_type="Own"),
        "the image processor of model 'm' is defined by code in the checkpoint, which is never run",
        "there may be a conversion",
        base="llava",
    ),
    Layout(
        "a processor of a class that is not known",
        both(edit(IMAGES, processor_class="Own"), edit(PROCESSOR, processor_class="Own")),
        base="llava",
    ),
    Layout(
        "an image processor that is cut off",
        put(IMAGES, b"{"),
        f"'{IMAGES}' of model 'm' is not valid JSON",
        "fetch it again",
        base="llava",
    ),
    Layout(
        "a pointer of Git LFS in place of the image processor",
        put(IMAGES, POINTER),
        f"'{IMAGES}' of model 'm' is a pointer of Git LFS and not the file itself",
        "git lfs pull",
        base="llava",
    ),
]
