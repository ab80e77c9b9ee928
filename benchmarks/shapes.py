"""Random weights in the shape of a real model: fine for speed, never for a claim about answers.

Saves a checkpoint folder that vlmkit and transformers both load: a Qwen2 decoder, a byte-level
tokenizer whose every id can be decoded, and a plain chat template.
"""

from pathlib import Path

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] if m['content'] is string "
    "else m['content'][0]['text'] }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
SHAPES = {
    "0.5b": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
    },
    "small": {
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 32000,
    },
}


def save(shape: str, folder: Path) -> Path:
    """Save a checkpoint of a shape into ``folder``, unless it is there already."""
    if (folder / "model.safetensors").is_file():
        return folder
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    sizes = SHAPES[shape]
    config = Qwen2Config(
        **sizes,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config.do_sample = False
    model.save_pretrained(folder)
    _tokenizer(sizes["vocab_size"]).save_pretrained(folder)
    return folder


def _tokenizer(vocab_size: int):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<|im_end|>", "<|im_start|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    names += [f"Ġw{i}" for i in range(len(names), vocab_size)]
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=TEMPLATE,
    )
