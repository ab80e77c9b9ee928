"""Lets tests import the scripted server."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
