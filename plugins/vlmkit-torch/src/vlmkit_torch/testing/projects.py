"""The projects that ``vlmkit plugins new`` writes for the kinds of vlmkit-torch."""

from pathlib import Path

from vlmkit_testing.project import NUMPY, Template

TEMPLATES = Path(__file__).parent / "templates"
TORCH = "vlmkit-torch>=0.1,<0.2"

WEIGHTS = Template(
    "Weights in eight bits with a scale for each row, for vlmkit-torch",
    ("torch>=2.6", TORCH),
    ("safetensors>=0.8", "tokenizers>=0.21", "transformers>=5.20"),
    tried_with="model",
    folder=TEMPLATES / "torch_weights",
)
ATTENTION = Template(
    "Attention in double precision, for vlmkit-torch",
    (NUMPY, "torch>=2.6", TORCH),
    folder=TEMPLATES / "torch_attention",
)
