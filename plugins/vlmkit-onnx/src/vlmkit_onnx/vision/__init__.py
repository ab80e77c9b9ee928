"""The vision encoder: from a processor's arrays to image features, by one ONNX graph."""
