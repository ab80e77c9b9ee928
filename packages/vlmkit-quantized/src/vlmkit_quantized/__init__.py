"""Quantized weights of checkpoints, read from safetensors files without torch.

``formats`` chooses the format of a checkpoint, and each format has a module. They supply weights in
the form of ``weight``: integers or low-bit floats in groups, with scales and zero points. Computes
no layer and keeps no weight in memory.
"""
