"""Calls a backend of another plugin: errors and wrong results are reported under its name."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vlmkit.errors import EngineError, VlmkitError
from vlmkit_torch.attention.layer_kind import LayerKind
from vlmkit_torch.attention.step import StepTokens
from vlmkit_torch.devices import faults
from vlmkit_torch.devices.uploads import Uploads
from vlmkit_torch.interfaces.torch_attention import (
    AttentionBackend,
    AttentionCall,
    AttentionCapabilities,
    AttentionNeeds,
)

log = logging.getLogger(__name__)


class CheckedBackend:
    """A backend whose results are checked for shape, dtype and device.

    Attributes:
        who: its description in messages, with its plugin.

    Args:
        backend: of another plugin.
        who: see above.
    """

    def __init__(self, backend: AttentionBackend, who: str) -> None:
        self._backend = backend
        self.who = who

    @property
    def capabilities(self) -> AttentionCapabilities:
        """What the backend states."""
        return self._backend.capabilities

    def prepare(self, needs: AttentionNeeds) -> None:
        """See :meth:`.AttentionBackend.prepare`."""
        with self._named("prepare"):
            self._backend.prepare(needs)

    def plan(self, step: StepTokens, kind: LayerKind, uploads: Uploads) -> Any:
        """See :meth:`.AttentionBackend.plan`."""
        with self._named("plan"):
            return self._backend.plan(step, kind, uploads)

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """See :meth:`.AttentionBackend.attend`.

        Raises:
            EngineError: the backend raised an error, or returned something else than it must.
        """
        with self._named("attend"):
            out: object = self._backend.attend(call)
        heads, num_tokens, _ = call.query.shape
        shape = (num_tokens, heads, call.value.shape[2])
        like = call.value
        if not isinstance(out, torch.Tensor):
            raise self._wrong(f"a value of type {type(out).__name__!r}")
        if (tuple(out.shape), out.dtype, out.device) != (shape, like.dtype, like.device):
            raise self._wrong(
                f"{out.dtype} {list(out.shape)} on {str(out.device)!r} instead of {like.dtype} "
                f"{list(shape)} on {str(like.device)!r}"
            )
        return out

    def _wrong(self, what: str) -> EngineError:
        return EngineError(f"{self.who} returned {what} from 'attend'")

    @contextmanager
    def _named(self, method: str) -> Iterator[None]:
        """Turn an unexpected error into an ``EngineError``; let failures of the device pass."""
        try:
            yield
        except VlmkitError:
            raise
        except Exception as error:
            if faults.is_out_of_memory(error) or faults.is_of_device(error):
                raise
            log.exception("%s failed in %r", self.who, method)
            raise EngineError(
                f"{self.who} raised {type(error).__name__} in {method!r}",
                hint="the log shows where, as does `vlmkit --debug ...`",
            ) from error
