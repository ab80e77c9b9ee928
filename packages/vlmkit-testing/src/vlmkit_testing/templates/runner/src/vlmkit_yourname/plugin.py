"""Offers a runner for references such as ``yourname://127.0.0.1:8000/mock``."""

from typing import Annotated

import msgspec

import vlmkit
from vlmkit.errors import ConfigError
from vlmkit.interfaces.runner import Runner
from vlmkit.plugins.registry import BuildContext, Registry

VLMKIT_API = (1, 0)
SCHEME = "yourname"


class RemoteSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section ``[runner]``, or ``runner`` of one of several models.

    Attributes:
        vocab_size: number of tokens that the model knows, as its ``config.json`` states.
        eos_ids: tokens that end an answer, as its ``generation_config.json`` states.
        max_requests: maximum number of requests at the other server at once; others are refused.
        tls: whether the connection is encrypted.
        api_key: the key that the other server expects, if any.
        check_interval_s: time between checks whether the other server is there.
    """

    vocab_size: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    eos_ids: tuple[Annotated[int, msgspec.Meta(ge=0)], ...] = ()
    max_requests: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 256
    tls: bool = False
    api_key: str = ""
    check_interval_s: Annotated[float, msgspec.Meta(gt=0.0, le=3600.0)] = 5.0


def _checked(context: BuildContext) -> RemoteSettings:
    settings: RemoteSettings = context.settings
    for name in ("vocab_size", "eos_ids"):
        if not getattr(settings, name):
            raise ConfigError(
                f"runner.{name} is not set, and the other server does not tell it",
                hint="see config.json and generation_config.json of the model",
            )
    return settings


def _build(context: BuildContext) -> Runner:
    from vlmkit_yourname.runner import RemoteRunner  # it imports an HTTP client

    return RemoteRunner(context.reference, context.name, _checked(context), context.bounds)


def _examine(context: BuildContext) -> str:
    return f"by another server, up to {_checked(context).max_requests} requests at once"


@vlmkit.hookimpl
def vlmkit_register_runners(registry: Registry[Runner]) -> None:
    """Answer for every model whose reference begins with ``yourname://``."""
    registry.add(
        "yourname",
        _build,
        settings=RemoteSettings,
        schemes=(SCHEME,),
        examine=_examine,
        description="another server that speaks OpenAI's API",
    )
