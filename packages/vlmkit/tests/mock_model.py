"""What tests of a pipeline on the mock start from: its prompts, pictures, and waiting for it."""

import json
import time

import PIL.Image


def script(**fields):
    """Return a prompt that tells the mock what to answer."""
    return json.dumps({"mock": fields})


def picture(width=8, height=6, color="red"):
    return PIL.Image.new("RGB", (width, height), color)


def wait_until(condition, timeout_s=300.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)
