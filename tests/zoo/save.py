"""Writing a family of the zoo as a checkpoint folder, laid out as on the hub."""

import json
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from zoo.composite import THINKERS
from zoo.cross_attention import CROSS_ATTENTION
from zoo.family import Family, VisionSide
from zoo.more import MORE
from zoo.others import OTHERS
from zoo.reference import FAMILIES, WITH_TIMM, family, image_processor, processor
from zoo.text import TEXT
from zoo.variants import VARIANTS
from zoo.vision import VISION

NAMES = tuple(FAMILIES)
NAMES_VISION = tuple(VISION)
NAMES_VARIANTS = tuple(VARIANTS)
NAMES_MORE = tuple(MORE)
NAMES_OTHERS = (*OTHERS, *CROSS_ATTENTION)
NAMES_THINKERS = tuple(THINKERS)
NAMES_TIMM = tuple(WITH_TIMM)
NAMES_TEXT = tuple(TEXT)
SEED = 0


def save_processor(name: str, folder: Path) -> Path:
    """Write everything of a family but its weights; needs no torch.

    Args:
        name: one of ``NAMES_VISION`` or ``NAMES_TEXT``.
        folder: where to write; made if it is not there.

    Returns:
        The folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    chosen = family(name)
    tokenizer = processor(name).tokenizer if chosen.vision else chosen.tokenizer()
    tokenizer.save_pretrained(folder)
    chosen.config(tokenizer).save_pretrained(folder)
    if chosen.template is not None:
        (folder / "chat_template.jinja").write_text(chosen.template)
    if chosen.vision is not None:
        _save_vision(chosen.vision, folder)
    _write(folder / "generation_config.json", _generation(chosen, tokenizer))
    return folder


def save(name: str, folder: Path, *, dtype: str = "float32") -> Path:
    """Write a whole checkpoint: everything, and random weights that are always the same.

    Args:
        name: one of ``NAMES_VISION`` or ``NAMES_TEXT``.
        folder: where to write; made if it is not there.
        dtype: the weights' type, as torch names it.

    Returns:
        The folder.
    """
    import torch
    import transformers

    save_processor(name, folder)
    config = transformers.AutoConfig.from_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = _made(name, config)
        _make_images_matter(model)
    kept = json.loads((folder / "generation_config.json").read_text())
    if dtype != "float32":
        model.to(getattr(torch, dtype))
    model.save_pretrained(folder)
    _write(folder / "generation_config.json", kept)
    return folder


def _made(name: str, config: Any) -> Any:
    import torch
    import transformers

    if whole := family(name).whole:
        return getattr(transformers, whole)(config)
    auto = transformers.AutoModelForImageTextToText if name not in TEXT else None
    return (auto or transformers.AutoModelForCausalLM).from_config(config, dtype=torch.float32)


def _make_images_matter(model: Any) -> None:
    """Widen weights outside the language model: tiny towers start out nearly constant."""
    import torch

    language = ("language_model", "text_model", "lm_head")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.numel() == 1 and "gate" in name:
                weight.fill_(0.3)  # closed, as they start out, they let nothing through
            if weight.ndim < 2 or any(part in name for part in language):
                continue
            spread = weight.std().item()
            if 0 < spread < 0.1:
                weight.mul_(0.15 / spread)
            elif spread == 0:
                weight.normal_(0, 0.15)


def _save_vision(side: VisionSide, folder: Path) -> None:
    settings = image_processor(side).to_dict()
    settings["image_processor_type"] = side.image_processor.removesuffix("Pil")
    settings["processor_class"] = side.processor
    _write(folder / "preprocessor_config.json", settings)
    _write(
        folder / "processor_config.json",
        {"processor_class": side.processor, **side.processor_settings},
    )


def _generation(chosen: Family, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    eos = [tokenizer.convert_tokens_to_ids(token) for token in chosen.eos]
    return {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": eos if len(eos) > 1 else eos[0],
        "pad_token_id": tokenizer.pad_token_id,
    }


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, default=str) + "\n")
