"""ONNX Runtime: its import, and sessions for graphs on this CPU or device."""
