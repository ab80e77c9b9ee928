"""LLM engine and vision encoder of vlmkit on ONNX Runtime, without torch."""
