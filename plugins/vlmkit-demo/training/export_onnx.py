"""Write the packaged checkpoint as ONNX graphs beside its weights, for use without torch.

    python training/export_onnx.py

Quantizes the decoder's linear layers to 8 bits, see the README of vlmkit-onnx; trains nothing. The
tower is so small that quantization would gain nothing.
"""

import tempfile
from pathlib import Path

from tokenizer import CHECKPOINT

from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_onnx.export.exporter import export

GRAPHS = (
    "*.onnx",
    "*.onnx.data",
    "embeddings.safetensors",
    "vision_sample.npz",
    "vlmkit_onnx.json",
)


def main() -> None:
    """Export and replace the existing graphs."""
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "onnx"
        export(Checkpoint("demo", CHECKPOINT), made, "w8a8", print, vision_precision="fp32")
        for pattern in GRAPHS:
            for old in CHECKPOINT.glob(pattern):
                old.unlink()
            for new in made.glob(pattern):
                (CHECKPOINT / new.name).write_bytes(new.read_bytes())


if __name__ == "__main__":
    main()
