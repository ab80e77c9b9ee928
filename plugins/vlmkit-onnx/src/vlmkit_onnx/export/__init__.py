"""Exports a safetensors checkpoint to ONNX; the only part of this package that needs torch."""
