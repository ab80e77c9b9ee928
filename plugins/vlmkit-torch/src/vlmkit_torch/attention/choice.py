"""Chooses an engine's attention backend among those that plugins offer.

A backend is used only after it agreed with ``sdpa``, on the device and with the model's layers.
"""

import logging
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from vlmkit.errors import EngineError, PluginUnavailable, VlmkitError
from vlmkit.plugins.registry import BuildContext, Registered
from vlmkit_torch.attention import load_check
from vlmkit_torch.attention.checked_backend import CheckedBackend
from vlmkit_torch.attention.sdpa import SdpaAttention
from vlmkit_torch.interfaces.kinds import DISTRIBUTION, TORCH_ATTENTION
from vlmkit_torch.interfaces.torch_attention import AttentionBackend, AttentionNeeds

log = logging.getLogger(__name__)
Backend = TypeVar("Backend", bound=AttentionBackend)

DENSE = 'engine.cache_dtype = "auto" keeps keys and values in the precision of the model'


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """The backends that an engine may use.

    Attributes:
        context: of the engine; without registries it has the backend of this plugin alone.
        name: what ``engine.attention`` says.
        has_int8_cache: whether only backends that read an 8-bit cache may be chosen.
    """

    context: BuildContext
    name: str = "auto"
    has_int8_cache: bool = False

    def refuse_absent(self) -> None:
        """Refuse a backend that is not installed or cannot run here, before weights are read.

        Raises:
            UnknownPlugin: no plugin provides the name.
            PluginUnavailable: the provider cannot serve the model here, or reads no 8-bit cache.
            VlmkitError: it has to be built to know that, and cannot be.
        """
        registered = self._registered
        if registered is None:
            return
        provider = registered.choose(self.name, self.context.checkpoint)
        if self.name == "auto" or not self.has_int8_cache:
            return
        backend = registered.build(registered.key(provider), {}, self.context)
        if not backend.capabilities.int8_cache:
            raise PluginUnavailable(
                f"{_who(registered, provider)} does not support an 8-bit cache", hint=DENSE
            )

    def described(self, device: torch.device) -> str:
        """Return the backends that may be chosen, the preferred first, with their plugins.

        The first that supports a model is chosen, which is known once the model is built. Empty
        without registries.

        Args:
            device: backends for other devices are left out.

        Raises:
            PluginError: as for :meth:`refuse_absent`.
        """
        registered = self._registered
        if registered is None:
            return ""
        candidates = self._candidates(registered)
        suited = [each for each in candidates if self._suits(registered, each, device)]
        return " or ".join(_who(registered, each) for each in suited or candidates)

    @property
    def is_own(self) -> bool:
        """Whether only the backend of this plugin can be chosen."""
        registered = self._registered
        return registered is None or all(
            provider.plugin == DISTRIBUTION for provider in self._candidates(registered)
        )

    def backend(self, needs: AttentionNeeds) -> AttentionBackend:
        """Return the named backend, or for ``auto`` the preferred one that can run the model.

        Other backends than ``sdpa`` are compared with it first, see :mod:`.load_check`.

        Raises:
            PluginUnavailable: it cannot, or none can; the message has the reasons.
            VlmkitError: the named one cannot be built, or fails.
        """
        registered = self._registered
        if registered is None:
            return _prepared(SdpaAttention(), needs)
        reasons: dict[str, str] = {}
        all_needs = replace(needs, has_int8_cache=self.has_int8_cache)
        for provider in self._candidates(registered):
            key = registered.key(provider)
            try:
                backend = registered.build(key, {}, self.context)
            except VlmkitError as error:
                if self.name != "auto":
                    raise
                log.warning("torch attention %r cannot be built: %s", key, error)
                reasons[key] = "it cannot be built"
                continue
            if missing := ", ".join(backend.capabilities.missing(all_needs)):
                reasons[key] = f"it does not support {missing}"
                continue
            if type(backend) is SdpaAttention:  # the reference
                log.info("attention backend: %s", key)
                return _prepared(backend, needs)
            checked = CheckedBackend(backend, _who(registered, provider))
            if reason := self._objection(checked, all_needs):
                log.warning("%s is not used: %s", checked.who, reason)
                reasons[key] = reason
                continue
            log.info("attention backend: %s", key)
            return checked
        dense = f"; {DENSE}" if self.has_int8_cache else ""
        every = "; ".join(f"{key}: {reason}" for key, reason in reasons.items())
        raise PluginUnavailable(
            f"no torch attention can run this model ({every or 'none is installed'})",
            hint=f"installed: {', '.join(registered.objections(self.context.checkpoint))}; "
            f'engine.attention = "auto" takes one that can{dense}',
        )

    def _suits(
        self, registered: Registered[AttentionBackend], provider: Any, device: torch.device
    ) -> bool:
        """Return whether a backend states a device, or cannot be built, which loading reports."""
        try:
            backend = registered.build(registered.key(provider), {}, self.context)
        except VlmkitError:
            return True
        devices = backend.capabilities.devices
        return devices is None or device.type in devices

    def _objection(self, backend: CheckedBackend, needs: AttentionNeeds) -> str:
        """Prepare a backend; return why it must not be used, empty if it agrees with ``sdpa``.

        Raises:
            EngineError: the backend raised an error, and is named by ``engine.attention``.
        """
        try:
            return load_check.objection(_prepared(backend, needs), needs)
        except EngineError as error:
            if self.name != "auto":
                raise
            return str(error)

    @property
    def _registered(self) -> Registered[AttentionBackend] | None:
        is_alone = TORCH_ATTENTION.plural not in self.context.registries
        return None if is_alone else self.context.providers(TORCH_ATTENTION)

    def _candidates(self, registered: Registered[AttentionBackend]) -> list[Any]:
        subject = self.context.checkpoint
        if self.name == "auto":
            return registered.able(subject)
        return [registered.choose(self.name, subject)]


def _who(registered: Registered[AttentionBackend], provider: Any) -> str:
    """Return the description of a provider in messages, with its plugin."""
    return f"torch attention {registered.key(provider)!r} from {provider.plugin!r}"


def _prepared(backend: Backend, needs: AttentionNeeds) -> Backend:
    backend.prepare(needs)
    return backend
