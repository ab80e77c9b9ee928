"""A plugin whose engine and encoder fail as the file ``fault`` says."""

import sys
import time
from pathlib import Path

from vlmkit.plugins.hookspecs import hookimpl
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEncoderSettings, MockEngineSettings
from vlmkit_mock.vision_encoder import MockVisionEncoder

VLMKIT_API = (1, 0)
FAULT, NO_LOAD = Path("fault"), Path("no_load")


class Panic(BaseException):
    """An error like one of a Rust library: no ``Exception``."""


def take_fault():
    """Return the fault to cause, once."""
    if not FAULT.exists():
        return ""
    what = FAULT.read_text()
    FAULT.unlink()
    return what


class FaultyEngine(MockEngine):
    def forward(self, items):
        what = take_fault()
        if what == "panic":
            raise Panic("secret words")
        if what == "exit":
            sys.exit(0)
        while what == "hang":
            time.sleep(0.05)
        return super().forward(items)


class FaultyEncoder(MockVisionEncoder):
    def encode(self, slots):
        while FAULT.exists():
            time.sleep(0.05)
        return super().encode(slots)


def build(context):
    if NO_LOAD.exists():
        raise RuntimeError("told not to load")
    return FaultyEngine(context.settings)


@hookimpl
def vlmkit_register_engines(registry):
    registry.add("faulty", build, settings=MockEngineSettings)


@hookimpl
def vlmkit_register_media_encoders(registry):
    registry.add("faulty", lambda c: FaultyEncoder(c.settings), settings=MockEncoderSettings)
