"""Adds this folder to the import path, for the packages ``broken`` and ``honest``."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
