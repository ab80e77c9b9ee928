"""Chooses the reader of a checkpoint's quantized weights among those that plugins offer."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from vlmkit.errors import CheckpointError, VlmkitError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_torch.interfaces.kinds import DISTRIBUTION, TORCH_WEIGHTS
from vlmkit_torch.interfaces.torch_weights import StoredWeight, WeightReader
from vlmkit_torch.loading.own_readers import own_reader
from vlmkit_torch.support import quantization

T = TypeVar("T")
log = logging.getLogger(__name__)


class Reader:
    """A reader, with the name under which its failures are reported.

    Attributes:
        reader: the reader.
        who: its description in messages, with its plugin.
        is_own: whether it is one of this plugin.
    """

    def __init__(self, reader: WeightReader, who: str, *, is_own: bool) -> None:
        self.reader = reader
        self.who = who
        self.is_own = is_own

    def weights(self) -> Mapping[str, StoredWeight]:
        """Return the weights that it supplies; see :meth:`.WeightReader.weights`.

        Raises:
            CheckpointError: it fails, or returns no mapping.
        """
        found: object = self.call("weights", self.reader.weights)
        if not isinstance(found, Mapping):
            raise CheckpointError(
                f"{self.who} returned a value of type {type(found).__name__!r} from 'weights'"
            )
        return found

    def call(self, what: str, function: Callable[..., T], *arguments: Any) -> T:
        """Call one of its functions.

        Raises:
            CheckpointError: it raised an unexpected error; those of this plugin pass.
        """
        try:
            return function(*arguments)
        except VlmkitError:
            raise
        except Exception as error:
            if self.is_own:
                raise
            log.exception("%s failed in %s", self.who, what)
            raise CheckpointError(
                f"{self.who} raised {type(error).__name__} in {what!r}",
                hint="the log shows where, as does `vlmkit --debug ...`",
            ) from error


def own_reader_of(checkpoint: Checkpoint) -> Reader | None:
    """Return the reader of this plugin; None if the weights are not quantized."""
    own = own_reader(checkpoint)
    return None if own is None else Reader(own, f"torch weights of {DISTRIBUTION}", is_own=True)


def reader_of(context: BuildContext, name: str = "auto") -> Reader | None:
    """Return the reader of a model's weights; None if they are not quantized.

    Args:
        context: with the model; without registries it has the readers of this plugin alone.
        name: of the reader, or ``auto``.

    Raises:
        PluginUnavailable: the named reader cannot read them, or none can.
    """
    checkpoint = context.files
    if quantization.method_of(checkpoint) is None:
        return None
    if TORCH_WEIGHTS.plural not in context.registries:
        return own_reader_of(checkpoint)
    registered = context.providers(TORCH_WEIGHTS)
    provider = registered.choose(name, checkpoint)
    key = registered.key(provider)
    log.info("reader of quantized weights: %s", key)
    return Reader(
        registered.build(key, {}, context),
        f"torch weights {key!r} from {provider.plugin!r}",
        is_own=provider.plugin == DISTRIBUTION,
    )
