"""Programs for Node in the folder ``npm``, each with the clients that it names in its imports.

They run beside the packages that ``NODE_FOLDER`` holds, and say what they tried by Node's own test
runner.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PROGRAMS = sorted(Path(__file__).with_name("npm").glob("*.mjs"))
REPLIES = [
    {
        "to": "weather in Köln",
        "text": "I look.",
        "calls": [{"name": "weather", "arguments": {"city": "Köln"}}],
    },
    {"to": "sunny", "text": "It is sunny."},
    {"to": "as JSON", "text": '{"colour": "red", "count": 3}'},
    {"to": "think", "reasoning": "One, two.", "text": "Two."},
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_node_program_passes_all_its_checks(server, data_url, program):
    folder = Path(os.environ["NODE_FOLDER"])
    here = Path(shutil.copy(program, folder))
    own = {"SERVER": server.url, "PICTURE": data_url}
    done = subprocess.run(
        ["node", "--test", "--test-reporter=tap", here],
        env=os.environ | own,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
