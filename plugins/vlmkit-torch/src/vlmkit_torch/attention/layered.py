"""Calls for each layer the attention backend that was chosen for it.

Layers of one model differ by their masks, soft caps and sinks, and steps by spans of tokens that
see each other. A fast kernel often supports some of them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from vlmkit_torch.attention.checked_backend import CheckedBackend
from vlmkit_torch.attention.layer_kind import LayerKind
from vlmkit_torch.attention.step import StepTokens
from vlmkit_torch.devices.uploads import Uploads
from vlmkit_torch.interfaces.torch_attention import (
    AttentionBackend,
    AttentionCall,
    AttentionCapabilities,
    AttentionNeeds,
    LayerNeeds,
)


class LayerForm(NamedTuple):
    """What layers of a model have in common, and the kind of step.

    Attributes:
        layer: a layer; its index is 0.
        has_spans: whether a prompt of the step has tokens that see later ones.
    """

    layer: LayerNeeds
    has_spans: bool

    @classmethod
    def of(cls, layer: LayerNeeds, *, has_spans: bool = False) -> "LayerForm":
        """Return the form of a layer."""
        return cls(replace(layer, index=0), has_spans)

    def __str__(self) -> str:
        """Describe the layers in logs."""
        layer = self.layer
        marks = [layer.kind.name]
        marks += ["soft caps"] * (layer.softcap is not None) + ["sinks"] * layer.has_sinks
        return " with ".join([" and ".join(marks), *["image spans"] * self.has_spans])


class LayeredPlan(NamedTuple):
    """The plans of the backends that layers of one kind have in a step."""

    has_spans: bool
    plans: dict[AttentionBackend, Any]


class LayeredAttention:
    """Several prepared backends, as one.

    Args:
        chosen: the backend of each form of layer.
        layers: of the model.
    """

    def __init__(
        self, chosen: Mapping[LayerForm, AttentionBackend], layers: Iterable[LayerNeeds]
    ) -> None:
        self._backends: dict[tuple[int, bool], AttentionBackend] = {}
        self._of_kind: dict[tuple[LayerKind, bool], set[AttentionBackend]] = {}
        for layer in layers:
            for has_spans in (False, True):
                plain = chosen[LayerForm.of(layer)]
                backend = chosen.get(LayerForm.of(layer, has_spans=has_spans), plain)
                self._backends[layer.index, has_spans] = backend
                self._of_kind.setdefault((layer.kind, has_spans), set()).add(backend)

    @property
    def who(self) -> str:
        """The backends other than ``sdpa``, in messages."""
        found = {b.who for b in self._backends.values() if isinstance(b, CheckedBackend)}
        return " and ".join(sorted(found))

    @property
    def capabilities(self) -> AttentionCapabilities:
        """What all of them state, each for its layers and steps."""
        of_plain, of_spans = (
            [b.capabilities for (_, spans), b in self._backends.items() if spans is has_spans]
            for has_spans in (False, True)
        )
        return AttentionCapabilities(
            image_spans=all(each.image_spans for each in of_spans),
            int8_cache=all(each.int8_cache for each in (*of_plain, *of_spans)),
            fixed_shapes=all(each.fixed_shapes for each in of_plain),
            reads_in_place=all(each.reads_in_place for each in of_plain),
        )

    def prepare(self, needs: AttentionNeeds) -> None:
        """Do nothing: each backend was prepared for its own layers."""

    def plan(self, step: StepTokens, kind: LayerKind, uploads: Uploads) -> LayeredPlan:
        """See :meth:`.AttentionBackend.plan`."""
        has_spans = any(sequence.views for sequence in step.sequences)
        backends = self._of_kind[kind, has_spans]
        return LayeredPlan(
            has_spans, {backend: backend.plan(step, kind, uploads) for backend in backends}
        )

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """See :meth:`.AttentionBackend.attend`."""
        plan: LayeredPlan = call.plan
        backend = self._backends[call.parameters.index, plan.has_spans]
        return backend.attend(call._replace(plan=plan.plans[backend]))
