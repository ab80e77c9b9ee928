"""Random weights in the shape of a real model: fine for speed, never for a claim about answers.

Saves checkpoint folders that vlmkit and transformers both load: a decoder, or SmolVLM, with a
byte-level tokenizer without merges, so that an ASCII character of a prompt is one token.
"""

import json
from pathlib import Path

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] if m['content'] is string "
    "else m['content'][0]['text'] }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
TEMPLATE_TOKENS = 19  # of the template around one user's message
IMAGE_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] | capitalize }}: {% for p in m['content'] %}"
    "{{ p['text'] if p['type'] == 'text' else '<image>' }}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}Assistant:"
)
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
IMAGE_SHAPES = {  # decoder, tower
    "smolvlm-500m": (
        {
            "hidden_size": 960,
            "intermediate_size": 2560,
            "num_hidden_layers": 32,
            "num_attention_heads": 15,
            "num_key_value_heads": 5,
            "vocab_size": 49280,
        },
        {
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
        },
    ),
    "smolvlm-small": (
        {
            "hidden_size": 256,
            "intermediate_size": 512,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 4096,
        },
        {
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
        },
    ),
}
LONGEST_EDGE = 1024  # a square picture becomes 2 x 2 tiles and one of the whole
TILE_EDGE = 512
TILE_TOKENS = 64
SPECIAL = ("<pad>", "<|im_end|>", "<|im_start|>")
IMAGE_SPECIAL = (
    "<fake_token_around_image>",
    "<image>",
    "<end_of_utterance>",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)


def save(shape: str, folder: Path) -> Path:
    """Save a text model of a shape into ``folder``, unless it is there already."""
    if (folder / "model.safetensors").is_file():
        return folder
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    sizes = SHAPES[shape]
    config = AutoConfig.for_model(
        **sizes,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
    )
    model = AutoModelForCausalLM.from_config(config)
    model.generation_config.do_sample = False
    tokenizer = _tokenizer(sizes["vocab_size"], SPECIAL, TEMPLATE)
    _say_whole_words(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_image_model(shape: str, folder: Path) -> Path:
    """Save a model that takes images into ``folder``, unless it is there already."""
    if (folder / "model.safetensors").is_file():
        return folder
    import torch
    from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration

    torch.manual_seed(0)
    decoder, tower = IMAGE_SHAPES[shape]
    special = (*SPECIAL, *IMAGE_SPECIAL)
    tokenizer = _tokenizer(decoder["vocab_size"], special, IMAGE_TEMPLATE)
    ids = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
    config = SmolVLMConfig(
        vision_config={**tower, "image_size": TILE_EDGE, "patch_size": 16},
        text_config={
            "model_type": "llama",
            **decoder,
            "max_position_embeddings": 8192,
            **ids,
        },
        image_token_id=special.index("<image>"),
        scale_factor=4,
        tie_word_embeddings=False,
        pad_token_id=0,
    )
    model = SmolVLMForConditionalGeneration(config)
    _say_whole_words(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _save_processor(folder)
    return folder


def _say_whole_words(model) -> None:
    """Make special tokens and single bytes unlikely: each token is text, and no answer ends."""
    num_bytes = 256
    weight = model.get_output_embeddings().weight.detach()
    weight[: len(SPECIAL) + len(IMAGE_SPECIAL) + num_bytes + 1] *= 0.05


def _save_processor(folder: Path) -> None:
    from transformers import SmolVLMImageProcessorPil

    images = SmolVLMImageProcessorPil(
        size={"longest_edge": LONGEST_EDGE},
        max_image_size={"longest_edge": TILE_EDGE},
        do_image_splitting=True,
    ).to_dict()
    names = {"processor_class": "SmolVLMProcessor"}
    images |= {**names, "image_processor_type": "SmolVLMImageProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(images, default=str))
    settings = {**names, "image_seq_len": TILE_TOKENS}
    (folder / "processor_config.json").write_text(json.dumps(settings))


def _tokenizer(vocab_size: int, special: tuple[str, ...], template: str):
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
