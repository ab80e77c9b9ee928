"""Runs pytest with a torchvision that may have been built for another torch.

transformers imports torchvision wherever it is installed. The import fails if the compiled part
does not fit. Resizing images needs only the names of two functions of it.

    python tests/with_torchvision.py plugins/vlmkit-hf/tests/test_torchvision.py
"""

import sys

import pytest
import torch

LACKING = ("nms", "qnms")


def main() -> int:
    """Run the command line."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in LACKING:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
    return int(pytest.main(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
