"""Make modules in this folder importable; without the server, skip tests that need it."""

import importlib.util
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

OF_THE_SERVER = ["test_added_fields.py", "test_cli.py", "test_config.py"]
collect_ignore = [] if importlib.util.find_spec("vlmkit_server") else OF_THE_SERVER
