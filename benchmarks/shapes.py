"""Random weights in the shape of a real model: valid for speed, not for claims about answers.

It saves checkpoint folders for vlmkit and transformers: a decoder with a byte-level tokenizer
without merges, so an ASCII character of a prompt is one token. :mod:`image_shapes` has the shapes
of vision models.
"""

from pathlib import Path

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] if m['content'] is string "
    "else m['content'][0]['text'] }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
TEMPLATE_TOKENS = 19  # of the template around one user's message
SHAPES = {
    "0.5b": {  # Qwen2.5-0.5B
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
    },
    "360m": {  # SmolLM2-360M
        "model_type": "llama",
        "hidden_size": 960,
        "intermediate_size": 2560,
        "num_hidden_layers": 32,
        "num_attention_heads": 15,
        "num_key_value_heads": 5,
        "vocab_size": 49152,
    },
    "1.2b": {  # Llama-3.2-1B
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128256,
    },
    "3b": {  # Llama-3.2-3B
        "model_type": "llama",
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
    },
    "8b": {  # Llama-3.1-8B
        "model_type": "llama",
        "max_position_embeddings": 131072,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
    },
    "small": {
        "model_type": "qwen2",
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 32000,
    },
}
SPECIAL = ("<pad>", "<|im_end|>", "<|im_start|>")
FIRST_LIKELY = 300  # after the special tokens of any shape, and the bytes


def save(shape: str, folder: Path, dtype: str = "float32") -> Path:
    """Save a text model of a shape into ``folder``, unless it exists already."""
    if (folder / "model.safetensors").is_file():
        return folder
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    sizes = SHAPES[shape]
    config = AutoConfig.for_model(
        **{"max_position_embeddings": 4096, **sizes},
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    model.generation_config.do_sample = False
    tokenizer = tokenizer_of(sizes["vocab_size"], SPECIAL, TEMPLATE)
    say_whole_words(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def say_whole_words(model) -> None:
    """Make special tokens and single bytes unlikely, so each token is text and no answer ends."""
    weight = model.get_output_embeddings().weight.detach()
    weight[:FIRST_LIKELY] *= 0.05


def tokenizer_of(vocab_size: int, special: tuple[str, ...], template: str):
    """Return a byte-level tokenizer; the unused ids are words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ĊĊ"]
    names += [f"Ġw{i}" for i in range(len(names), vocab_size)]
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<|im_end|>",
        additional_special_tokens=[name for name in special if name not in SPECIAL[:2]],
        chat_template=template,
    )
