"""The vision encoder: from a processor's arrays to image features, with one ONNX graph."""
