"""A checkpoint of any family: small and random, with a generated tokenizer.

A vision family has its own default processor if that can be built; its images then have real sizes.
"""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedTokenizerFast

from census import families, processors
from census.shrink import Shrinker
from zoo.tokenizer import byte_level

NUM_SPARE = 48  # tokens that no text has
TEMPLATE = (
    "{% for m in messages %}<|turn|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for p in m.content %}{{ 'IMAGE\n' if p.type == 'image' else p.text }}{% endfor %}"
    "{% endif %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
MAX_PARAMETERS = 100_000_000


def tokenizer(model_type: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer with the tokens that a family's processor writes."""
    written, named = processors.tokens(model_type)
    spare = [f"<|spare_{number}|>" for number in range(NUM_SPARE)]
    own = {"eos_token": "<|end|>", "pad_token": "<|pad|>"}
    first = ["<|pad|>", "<|end|>", "<|turn|>"]
    rest = [token for token in written if token not in first]
    return byte_level([*first, *spare, *rest], named=own, extra=named)


def config(model_type: str, made: PreTrainedTokenizerFast) -> PreTrainedConfig:
    """Return the small configuration of a family."""
    first = made.convert_tokens_to_ids("<|spare_0|>")
    vocab_size = -(-len(made) // 16) * 16
    return Shrinker(vocab_size, list(range(first, first + NUM_SPARE))).config(model_type)


def save_outline(model_type: str, folder: Path) -> tuple[PreTrainedConfig, Any]:
    """Write a checkpoint with one unknown weight in place of the weights.

    Returns:
        The configuration, and the family's processor if it can be built.
    """
    _save_no_weights(folder)
    made = tokenizer(model_type)
    small, processor = config(model_type, made), None
    small.save_pretrained(folder)
    made.save_pretrained(folder)
    if families.sees(model_type):
        processors.write(model_type, folder, {})
        processor = processors.load(model_type, folder, made)
    if processor is not None and (sizes := processors.sizes_of(processor, small.to_dict())):
        processors.write(model_type, folder, sizes)
        processor = processors.load(model_type, folder, made)
    if processor is not None:
        for key, value in processors.ids(small.to_dict(), processor).items():
            setattr(small, key, value)
        small.save_pretrained(folder)
    image = processors.placeholder(processor) if processor is not None else ""
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("IMAGE", image))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": made.eos_token_id}))
    return small, processor


def save_default(model_type: str, folder: Path) -> None:
    """Write a family's configuration as it is by default, and a weight that no model has."""
    _save_no_weights(folder)
    try:
        CONFIG_MAPPING[model_type]().save_pretrained(folder)
    except Exception:  # noqa: BLE001 - some have no default that they accept
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))


def _save_no_weights(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"nothing": torch.zeros(1)}, folder / "model.safetensors", metadata={"format": "pt"})


def save_weights(small: PreTrainedConfig, folder: Path) -> None:
    """Write random weights that are always the same, wide enough that each of them matters."""
    auto: Any = transformers.AutoModelForCausalLM
    if families.is_made_to_be_shown(small.model_type):
        auto = transformers.AutoModelForImageTextToText
    with torch.device("meta"):
        count = sum(weight.numel() for weight in auto.from_config(small).parameters())
    if count > MAX_PARAMETERS:
        raise ValueError(f"it has {count} parameters")
    torch.manual_seed(0)
    model = auto.from_config(small, dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            _widen(name, weight)
    kept = (folder / "generation_config.json").read_text()
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(kept)


def _widen(name: str, weight: torch.Tensor) -> None:
    if not weight.is_floating_point() or weight.numel() < 2:
        return
    spread = weight.std().item()
    if weight.ndim < 2:  # norms and biases, which are all ones or zeros
        if spread < 0.01:
            weight.add_(torch.randn_like(weight) * 0.1)
    elif 0 < spread < 0.1:
        weight.mul_(0.15 / spread)
    elif spread == 0:
        weight.normal_(0, 0.15)
