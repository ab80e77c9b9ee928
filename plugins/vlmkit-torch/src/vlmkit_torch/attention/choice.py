"""Chooses the attention backend of each layer among those that plugins offer.

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
from vlmkit_torch.attention.layered import LayeredAttention, LayerForm
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

        For each form of layer, the first that supports it is chosen, which is known once the model
        is built; none after ``sdpa``, which supports all. Empty without registries.

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
        return " or ".join(_who(registered, each) for each in _reachable(suited or candidates))

    @property
    def is_own(self) -> bool:
        """Whether only the backend of this plugin can be chosen."""
        registered = self._registered
        return registered is None or all(
            provider.plugin == DISTRIBUTION for provider in self._candidates(registered)
        )

    def backend(self, needs: AttentionNeeds) -> AttentionBackend:
        """Return the named backend, or for ``auto`` the preferred one for each form of layer.

        Other backends than ``sdpa`` are compared with it first, see :mod:`.load_check`. Forms are
        layers with equal masks and parameters, and steps with and without spans of an image.

        Raises:
            PluginUnavailable: it cannot run a form, or none can; the message has the reasons.
            VlmkitError: the named one cannot be built, or fails.
        """
        registered = self._registered
        if registered is None:
            return _prepared(SdpaAttention(), needs)
        needs = replace(needs, has_int8_cache=self.has_int8_cache)
        forms = _forms(needs)
        chosen: dict[LayerForm, AttentionBackend] = {}
        keys: dict[AttentionBackend, str] = {}
        reasons: dict[str, str] = {}
        for provider in self._candidates(registered):
            missing = [form for form in forms if form not in chosen]
            if not missing:
                break
            key = registered.key(provider)
            backend, able, reasons[key] = self._compared(registered, provider, missing, needs)
            if backend is not None:
                keys[backend] = key
                chosen |= dict.fromkeys(able, backend)
        if missing := [form for form in forms if form not in chosen]:
            raise self._none(registered, reasons)
        return _combined(chosen, keys, needs)

    def _compared(
        self,
        registered: Registered[AttentionBackend],
        provider: Any,
        forms: list[LayerForm],
        needs: AttentionNeeds,
    ) -> tuple[AttentionBackend | None, list[LayerForm], str]:
        """Prepare a backend and compare it.

        Returns:
            The backend, the forms that it may be used for, and why not for all.
        """
        key, who = registered.key(provider), _who(registered, provider)
        try:
            backend = registered.build(key, {}, self.context)
        except VlmkitError as error:
            if self.name != "auto":
                raise
            log.warning("torch attention %r cannot be built: %s", key, error)
            return None, [], "it cannot be built"
        lacking = {form: list(backend.capabilities.missing(_of(needs, [form]))) for form in forms}
        able = [form for form, names in lacking.items() if not names]
        reason = ", ".join(dict.fromkeys(name for names in lacking.values() for name in names))
        reason = reason and f"it does not support {reason}"
        if not able or (self.name != "auto" and reason):
            return None, [], reason
        if type(backend) is SdpaAttention:  # the reference
            return _prepared(backend, _of(needs, able)), able, reason
        checked = CheckedBackend(backend, who)
        objections = self._objections(checked, able, needs)
        for objection in dict.fromkeys(filter(None, objections.values())):
            log.warning("%s is not used: %s", who, objection)
            reason = reason or objection
        return checked, [form for form, objection in objections.items() if not objection], reason

    def _objections(
        self, backend: CheckedBackend, forms: list[LayerForm], needs: AttentionNeeds
    ) -> dict[LayerForm, str]:
        """Prepare a backend; return why it must not be used for each form, empty if it may.

        Raises:
            EngineError: the backend raised an error, and is named by ``engine.attention``.
        """
        try:
            backend.prepare(_of(needs, forms))
        except EngineError as error:
            if self.name != "auto":
                raise
            return dict.fromkeys(forms, str(error))
        return {form: self._objection(backend, _of(needs, [form])) for form in forms}

    def _none(
        self, registered: Registered[AttentionBackend], reasons: dict[str, str]
    ) -> PluginUnavailable:
        dense = f"; {DENSE}" if self.has_int8_cache else ""
        every = "; ".join(f"{key}: {reason}" for key, reason in reasons.items())
        return PluginUnavailable(
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
        """Return why a prepared backend must not be used, empty if it agrees with ``sdpa``.

        Raises:
            EngineError: the backend raised an error, and is named by ``engine.attention``.
        """
        try:
            return load_check.objection(backend, needs)
        except EngineError as error:
            if self.name != "auto":
                raise
            return f"{error}, in layers of the kind {needs.layers[0].kind.name!r}"

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


def _reachable(candidates: list[Any]) -> list[Any]:
    """Return the candidates up to ``sdpa``."""
    names = [(each.plugin, each.name) for each in candidates]
    own = (DISTRIBUTION, "sdpa")
    return candidates[: names.index(own) + 1] if own in names else candidates


def _prepared(backend: Backend, needs: AttentionNeeds) -> Backend:
    backend.prepare(needs)
    return backend


def _forms(needs: AttentionNeeds) -> list[LayerForm]:
    """Return the forms of a model's layers."""
    rules = (False, True) if needs.has_image_spans else (False,)
    forms = (LayerForm.of(layer, has_spans=rule) for layer in needs.layers for rule in rules)
    return list(dict.fromkeys(forms))


def _of(needs: AttentionNeeds, forms: list[LayerForm]) -> AttentionNeeds:
    """Return the needs of layers of some forms."""
    own = {form.layer for form in forms}
    layers = tuple(layer for layer in needs.layers if replace(layer, index=0) in own)
    return replace(needs, layers=layers, has_image_spans=any(form.has_spans for form in forms))


def _combined(
    chosen: dict[LayerForm, AttentionBackend],
    keys: dict[AttentionBackend, str],
    needs: AttentionNeeds,
) -> AttentionBackend:
    """Return the backend of all forms, or one that calls several."""
    used: dict[AttentionBackend, list[str]] = {}
    for form, backend in chosen.items():
        used.setdefault(backend, []).append(str(form))
    if len(used) == 1:
        (only,) = used
        log.info("attention backend: %s", keys[only])
        return only
    for backend, forms in used.items():
        log.info("attention backend of %s: %s", ", ".join(forms), keys[backend])
    return LayeredAttention(chosen, needs.layers)
