"""What tests of the vision side share."""

from pathlib import Path

import pytest

from vlmkit_onnx.folder.layout import VisionGraph
from vlmkit_onnx.sessions.session import open_session
from vlmkit_onnx.settings import ComputeSettings
from vlmkit_onnx.vision.encoder import OnnxVisionEncoder


class Encoders:
    """Opens vision graphs, with one thread and four pictures in a call."""

    def open(self, file: Path, *, is_own: bool = True) -> OnnxVisionEncoder:
        session = open_session(file, ComputeSettings(num_threads=1))
        return OnnxVisionEncoder(VisionGraph(file, is_own), session, 4)

    def export(self, model: object, folder: Path) -> OnnxVisionEncoder:
        """Export a model's tower and open that."""
        from vlmkit_onnx.export.vision import export_vision

        name = export_vision(model, folder, lambda _: None)  # type: ignore[arg-type]
        assert name is not None
        return self.open(folder / name)


@pytest.fixture(scope="session")
def encoders() -> Encoders:
    """Return what opens encoders."""
    return Encoders()
