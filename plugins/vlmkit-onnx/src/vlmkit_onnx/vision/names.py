"""What vision graphs call their outputs, and what their rows are called afterwards."""

from collections.abc import Mapping

from vlmkit_onnx.vision.feeding import Floats

FEATURES = "image_features"
DEEPSTACK = "deepstack."  # rows of the n-th level, for layers inside the decoder
NEWLINE = "image_newline"  # ends a line of rows


def rows_of(outputs: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return the outputs that are rows, ``[rows, hidden]`` each."""
    return {
        name: array.reshape(-1, array.shape[-1])
        for name, array in outputs.items()
        if name == FEATURES or name.startswith(DEEPSTACK)
    }
