"""A plugin whose compiler of constraints writes down when it is built, or fails if told to."""

from pathlib import Path

from spelling import SpellingCompiler
from vlmkit.plugins.hookspecs import hookimpl

VLMKIT_API = (1, 0)
BUILT, NO_BUILD = Path("built"), Path("no_build")


def build(context):
    if NO_BUILD.exists():
        raise RuntimeError("told not to build")
    with BUILT.open("a") as file:
        file.write("built\n")
    return SpellingCompiler(context.words)


@hookimpl
def vlmkit_register_constraints(registry):
    registry.add("late", build)
