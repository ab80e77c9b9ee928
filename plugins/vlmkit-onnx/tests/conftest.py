"""Fixtures for tests of vision encoders."""

from pathlib import Path

import pytest

from vlmkit_onnx.folder.layout import VisionGraph, own_tower
from vlmkit_onnx.folder.manifest import TowerPrecision
from vlmkit_onnx.sessions.session import open_tower
from vlmkit_onnx.settings import ComputeSettings
from vlmkit_onnx.vision.encoder import OnnxVisionEncoder


class Encoders:
    """Opens vision graphs with one thread and four images in a call."""

    def open(self, file: Path, *, is_own: bool = True) -> OnnxVisionEncoder:
        session = open_tower(file, ComputeSettings(num_threads=1))
        graph = own_tower(file) if is_own else VisionGraph(file, is_own=False)
        return OnnxVisionEncoder(graph, session, 4)

    def export(
        self, model: object, folder: Path, precision: TowerPrecision = "fp32"
    ) -> OnnxVisionEncoder:
        """Export the tower of a model and open it."""
        from vlmkit_onnx.export.vision import FILE, export_vision

        made = export_vision(model, folder, precision, lambda _: None)  # type: ignore[arg-type]
        assert made == precision
        return self.open(folder / FILE)


@pytest.fixture(scope="session")
def encoders() -> Encoders:
    """Return an opener of encoders."""
    return Encoders()
