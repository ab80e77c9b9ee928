"""The process of a constraint worker: ``python -m vlmkit.assembly.constraint_worker``.

Its first answer says whether it built the compiler. It has no engine, tokenizer or weights.
"""

import logging
import os

import msgspec

from vlmkit.config.constraint_plan import ConstraintPlan
from vlmkit.config.plugin_loading import load_plugins
from vlmkit.config.providers import registry_of
from vlmkit.errors import PluginUnavailable, VlmkitError
from vlmkit.interfaces.constraint import ConstraintCompiler, Vocabulary
from vlmkit.kit.traces import log_of_worker, trace_of
from vlmkit.plugins.registry import BuildContext
from vlmkit.running.constraints.sandbox.messages import CODEC
from vlmkit.running.constraints.sandbox.server import SandboxServer
from vlmkit.wire.frames import read_frame, write_frame

log = logging.getLogger(__name__)


def main() -> None:
    """Build a compiler and serve trial compilations."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints of libraries must not mix with answers
    log_of_worker()
    requests = os.fdopen(os.dup(0), "rb", buffering=0)  # a buffer would hide data in the pipe
    try:
        plan = msgspec.msgpack.decode(read_frame(requests).head, type=ConstraintPlan)
    except (EOFError, OSError):
        return
    try:
        compiler = built(plan)
    except VlmkitError as error:
        write_frame(answers, CODEC.encode(error))
        return
    SandboxServer(compiler, len(plan.token_bytes), requests, answers).serve()


def built(plan: ConstraintPlan) -> ConstraintCompiler:
    """Build the compiler of a plan.

    Raises:
        VlmkitError: the compiler cannot be built.
    """
    plugins = load_plugins(plan.plugins)
    files = plan.files.checkpoint
    context = BuildContext(
        plan.reference,
        files,
        revision=files.revision,
        registries=plugins.by_kind,
        vocabulary=Vocabulary(plan.token_bytes, lambda _: ()),
    )
    name, settings = plan.compiler
    try:
        compiler: ConstraintCompiler = registry_of(plugins, "constraint").build(
            name, settings, context
        )
    except VlmkitError:
        raise
    except Exception as error:
        log.error("constraint %r could not be built:\n%s", name, trace_of(error))  # noqa: TRY400
        raise PluginUnavailable(
            f"constraint {name!r} cannot be built in a constraint worker: {type(error).__name__}",
            hint="set server.constraint_workers to false",
        ) from error
    return compiler


if __name__ == "__main__":
    main()
