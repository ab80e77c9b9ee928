"""Convert a run to a checkpoint folder for transformers and vlmkit.

    python training/export.py --run RUN --out FOLDER

Writes the averaged weights in bfloat16 and the model's, tokenizer's and processor's configs. The
chat template and the tokenizer come from the plugin's own checkpoint folder.
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

import torch
from model import CONTEXT, build_model
from picture import GRID, SIDE
from tokenizer import CHECKPOINT, END, IMAGE, PAD, SPECIAL, load_tokenizer, special_ids
from transformers import LlavaProcessor, PreTrainedTokenizerFast
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil


def build_processor() -> LlavaProcessor:
    """Build the processor: every image is stretched to a square and scaled to [-1, 1]."""
    text: Any = PreTrainedTokenizerFast
    tokenizer = text(
        tokenizer_object=load_tokenizer(), eos_token=END, pad_token=PAD, padding_side="left",
        additional_special_tokens=[t for t in SPECIAL if t not in (END, PAD)],
        model_max_length=CONTEXT, clean_up_tokenization_spaces=False,
    )  # fmt: skip
    images = LlavaImageProcessorPil(
        do_resize=True, size={"height": SIDE, "width": SIDE}, resample=3, do_center_crop=False,
        crop_size={"height": SIDE, "width": SIDE}, do_rescale=True, rescale_factor=1 / 255,
        do_normalize=True, image_mean=[0.5] * 3, image_std=[0.5] * 3, do_convert_rgb=True,
    )  # fmt: skip
    whole: Any = LlavaProcessor
    processor: LlavaProcessor = whole(
        image_processor=images, tokenizer=tokenizer, patch_size=SIDE // GRID,
        vision_feature_select_strategy="default", image_token=IMAGE, num_additional_image_tokens=1,
        chat_template=(CHECKPOINT / "chat_template.jinja").read_text(encoding="utf-8"),
    )  # fmt: skip
    return processor


def export(run: Path, out: Path) -> None:
    """Write the checkpoint folder of a run's newest state."""
    tokenizer = load_tokenizer()
    ids = special_ids(tokenizer)
    model: Any = build_model(tokenizer.get_vocab_size(), ids[IMAGE], ids[END], ids[PAD])
    state = torch.load(run / "state.pt", weights_only=True)
    model.load_state_dict(state["average"], strict=False)
    model.tie_weights()
    model = model.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    model.generation_config.do_sample = False
    model.generation_config.eos_token_id = ids[END]
    model.generation_config.pad_token_id = ids[PAD]
    model.save_pretrained(out)
    build_processor().save_pretrained(out)
    if out.resolve() != CHECKPOINT.resolve():
        shutil.copy(CHECKPOINT / "chat_template.jinja", out / "chat_template.jinja")
    print(f"step {state['step']} -> {out}")


def main() -> None:
    """Read the command line and export."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    export(arguments.run, arguments.out)


if __name__ == "__main__":
    main()
