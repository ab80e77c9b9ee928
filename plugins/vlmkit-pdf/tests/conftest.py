"""Adds this folder to the import path."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
