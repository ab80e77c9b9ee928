"""Random models of the test zoo's families, enlarged to 60 to 300 MB.

A plan is compared with their peaks. Weights, caches and activations are then large beside the
libraries of the server. Images are as large as in small real models. Answers mean nothing.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.save import SEED, save_processor

EDGE = 224  # of an image or a tile, in pixels
PATCH = 14
SQUARE = {"height": EDGE, "width": EDGE}
MAX_PIXELS = 448 * 448
SMALL = 0.02  # spread of random weights; those of the zoo are too large for wide layers
DECODER = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "initializer_range": SMALL,
    "layer_types": None,
}
TOWER = {
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "patch_size": PATCH,
    "image_size": EDGE,
    "initializer_range": SMALL,
}
QWEN_TOWER = {
    "depth": 6,
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_heads": 6,
    "out_hidden_size": 512,
    "initializer_range": SMALL,
}
MROPE = {"rope_parameters": {"mrope_section": [8, 12, 12]}}
AREA = {"size": {"shortest_edge": 28 * 28, "longest_edge": MAX_PIXELS}}
WIDE = {**DECODER, "hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12}
SLIDING = {
    **DECODER,
    "num_key_value_heads": 2,
    "query_pre_attn_scalar": 64,
    "sliding_window": 512,
    "layer_types": ["sliding_attention", "full_attention"] * 4,
}
CLIP = {**TOWER, "projection_dim": 384, "initializer_factor": 1.0}
TILES = [[EDGE, 2 * EDGE], [2 * EDGE, EDGE], [2 * EDGE, 2 * EDGE]]
TILED = {
    "config": {"text_config": DECODER, "vision_config": TOWER},
    "images": {"size": {"longest_edge": 2 * EDGE}, "max_image_size": {"longest_edge": EDGE}},
    "processor": {"image_seq_len": 64},
}

Changes = Mapping[str, Mapping[str, Any]]
LARGER: dict[str, Changes] = {
    "llava": {
        "config": {"image_seq_length": 256, "text_config": DECODER, "vision_config": CLIP},
        "images": {"size": {"shortest_edge": EDGE}, "crop_size": SQUARE},
    },
    "llava_next": {
        "config": {"image_grid_pinpoints": TILES, "text_config": DECODER, "vision_config": CLIP},
        "images": {
            "size": {"shortest_edge": EDGE},
            "crop_size": SQUARE,
            "image_grid_pinpoints": TILES,
        },
    },
    "idefics3": TILED,
    "smolvlm": {
        **TILED,
        "config": {"text_config": {**WIDE, "num_hidden_layers": 6}, "vision_config": TOWER},
    },
    "qwen2_vl": {
        "config": {
            "text_config": {**DECODER, **MROPE},
            "vision_config": {
                **QWEN_TOWER,
                "hidden_size": 512,
                "embed_dim": 384,
                "mlp_ratio": 4,
            },
        },
        "images": AREA,
    },
    "qwen2_5_vl": {
        "config": {
            "text_config": {**WIDE, **MROPE},
            "vision_config": {
                **QWEN_TOWER,
                "out_hidden_size": 768,
                "window_size": 112,
                "fullatt_block_indexes": [2, 5],
            },
        },
        "images": AREA,
    },
    "qwen3_vl": {
        "config": {
            "text_config": {**DECODER, **MROPE},
            "vision_config": {
                **QWEN_TOWER,
                "num_position_embeddings": 1024,
                "deepstack_visual_indexes": [1, 2, 3],
            },
        },
        "images": AREA,
    },
    "gemma3": {
        "config": {
            "mm_tokens_per_image": 64,
            "text_config": SLIDING,
            "vision_config": TOWER,
        },
        "images": {"size": SQUARE},
        "processor": {"image_seq_length": 64},
    },
    "mistral3": {
        "config": {
            "text_config": WIDE,
            "vision_config": {**TOWER, "head_dim": 64, "image_size": 2 * EDGE},
        },
        "images": {"size": {"longest_edge": 2 * EDGE}},
    },
    "internvl": {
        "config": {
            "image_seq_length": 64,
            "text_config": DECODER,
            "vision_config": {**TOWER, "patch_size": [PATCH] * 2, "image_size": [EDGE] * 2},
        },
        "images": {"size": SQUARE},
        "processor": {"image_seq_length": 64},
    },
    "paligemma": {
        "config": {
            "hidden_size": 512,
            "projection_dim": 512,
            "text_config": {**SLIDING, "num_image_tokens": 256},
            "vision_config": {**TOWER, "projection_dim": 512},
        },
        "images": {"size": SQUARE, "image_seq_length": 256},
    },
    "glm4v": {
        "config": {
            "text_config": {
                **DECODER,
                "rope_parameters": {"mrope_section": [4, 6, 6], "partial_rotary_factor": 0.5},
            },
            "vision_config": {**QWEN_TOWER, "image_size": 2 * EDGE},
        },
        "images": AREA,
    },
}
FILES = {
    "config": "config.json",
    "images": "preprocessor_config.json",
    "processor": "processor_config.json",
}


def save(name: str, folder: Path) -> Path:
    """Save the enlarged model of a family into ``folder``, unless it exists already."""
    if (folder / "model.safetensors").is_file():
        return folder
    import torch
    import transformers

    save_processor(name, folder)
    for part, changes in LARGER[name].items():
        file = folder / FILES[part]
        file.write_text(json.dumps(_merged(json.loads(file.read_text()), changes), indent=1))
    torch.manual_seed(SEED)
    config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    generation = (folder / "generation_config.json").read_bytes()
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_bytes(generation)
    return folder


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with changes, also of inner objects; None removes a value."""
    merged = dict(values)
    for name, change in changes.items():
        if change is None:
            merged.pop(name, None)
        elif isinstance(change, Mapping) and isinstance(merged.get(name), dict):
            merged[name] = _merged(merged[name], change)
        else:
            merged[name] = change
    return merged
