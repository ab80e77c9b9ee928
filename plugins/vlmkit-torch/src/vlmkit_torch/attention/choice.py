"""Chooses an engine's attention backend among those that plugins offer."""

import logging
from dataclasses import dataclass, replace
from typing import Any

from vlmkit.errors import PluginUnavailable, VlmkitError
from vlmkit.plugins.registry import BuildContext, Registered
from vlmkit_torch.attention.checked_backend import CheckedBackend
from vlmkit_torch.attention.sdpa import SdpaAttention
from vlmkit_torch.interfaces.kinds import DISTRIBUTION, TORCH_ATTENTION
from vlmkit_torch.interfaces.torch_attention import AttentionBackend, AttentionNeeds

log = logging.getLogger(__name__)

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

    def described(self) -> str:
        """Return the backends that may be chosen, the preferred first, with their plugins.

        The first that supports a model is chosen, which is known once the model is built. Empty
        without registries.

        Raises:
            PluginError: as for :meth:`refuse_absent`.
        """
        registered = self._registered
        if registered is None:
            return ""
        return " or ".join(_who(registered, each) for each in self._candidates(registered))

    @property
    def is_own(self) -> bool:
        """Whether only the backend of this plugin can be chosen."""
        registered = self._registered
        return registered is None or all(
            provider.plugin == DISTRIBUTION for provider in self._candidates(registered)
        )

    def backend(self, needs: AttentionNeeds) -> AttentionBackend:
        """Return the named backend, or for ``auto`` the preferred one that can run the model.

        Raises:
            PluginUnavailable: it cannot, or none can; the message has the reasons.
            VlmkitError: the named one cannot be built.
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
            log.info("attention backend: %s", key)
            is_own = provider.plugin == DISTRIBUTION
            checked = backend if is_own else CheckedBackend(backend, _who(registered, provider))
            return _prepared(checked, needs)
        dense = f"; {DENSE}" if self.has_int8_cache else ""
        every = "; ".join(f"{key}: {reason}" for key, reason in reasons.items())
        raise PluginUnavailable(
            f"no torch attention can run this model ({every or 'none is installed'})",
            hint=f"installed: {', '.join(registered.objections(self.context.checkpoint))}; "
            f'engine.attention = "auto" takes one that can{dense}',
        )

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


def _prepared(backend: AttentionBackend, needs: AttentionNeeds) -> AttentionBackend:
    backend.prepare(needs)
    return backend
