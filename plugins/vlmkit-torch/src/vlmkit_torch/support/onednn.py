"""Limits the memory of oneDNN, torch's library of products on CPUs. Imports no torch.

It keeps objects (primitives) for 1,024 sizes of products, a quarter of a MiB each. A new one takes
no time to speak of, because its kernels stay compiled.
"""

import os

CAPACITY = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
NUM_PRIMITIVES = 64


def limit_primitives() -> None:
    """Let oneDNN keep few primitives, unless the environment says how many; it reads that once."""
    os.environ.setdefault(CAPACITY, str(NUM_PRIMITIVES))
