"""Tiny quantized checkpoints of families of the zoo, written from the specifications of formats.

Each maker shares no code with vlmkit-quantized: it packs numbers by arithmetic on Python's
integers, and computes the plain weights by torch.
"""
