"""ONNX Runtime: how it is imported, and how a graph is opened on this CPU or device."""
