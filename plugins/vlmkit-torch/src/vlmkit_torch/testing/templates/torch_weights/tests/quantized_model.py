"""Writes a tiny model with weights of eight bits; ``python quantized_model.py FOLDER``."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models


def save(folder: Path) -> dict[str, torch.Tensor]:
    """Write the model; return the values of its quantized weights."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    vocab = {chr(32 + i): i for i in range(95)} | {"<unk>": 95}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    made: Any = transformers.PreTrainedTokenizerFast
    fast = made(tokenizer_object=tokenizer)
    fast.chat_template = "{{ messages[-1]['content'] }}"
    fast.save_pretrained(folder)
    stated = json.loads((folder / "config.json").read_text())
    stated["quantization_config"] = {"quant_method": "yourname"}
    (folder / "config.json").write_text(json.dumps(stated))
    return _quantize(folder / "model.safetensors")


def _quantize(file: Path) -> dict[str, torch.Tensor]:
    values: dict[str, torch.Tensor] = {}
    stored: dict[str, torch.Tensor] = {}
    for name, weight in load_file(file).items():
        if weight.ndim != 2 or "embed" in name or "lm_head" in name:
            stored[name] = weight
            continue
        scale = (weight.abs().amax(1) / 127).half()
        integers = (weight / scale.float()[:, None]).round().clamp(-127, 127)
        stored |= {f"{name}_int8": integers.to(torch.int8), f"{name}_scale": scale}
        values[name] = integers * scale.float()[:, None]
    save_file(stored, file, metadata={"format": "pt"})
    return values


if __name__ == "__main__":
    save(Path(sys.argv[1]))
