"""The hooks of vlmkit-guidance. llguidance is imported when a compiler is built."""

from vlmkit.interfaces.constraint import ConstraintCompiler
from vlmkit.plugins.hookspecs import hookimpl
from vlmkit.plugins.registry import BuildContext, Registry

VLMKIT_API = (1, 0)


def _build(context: BuildContext) -> ConstraintCompiler:
    from vlmkit_guidance.compiler import GuidanceCompiler

    return GuidanceCompiler(context.words)


@hookimpl
def vlmkit_register_constraints(registry: Registry[ConstraintCompiler]) -> None:
    """Register ``constraint.use = "guidance"``."""
    registry.add(
        "guidance",
        _build,
        description="JSON schemas, regular expressions, choices and Lark grammars, by llguidance",
    )
