"""A plugin whose constraint compiler records each build, or fails if a file says so."""

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
