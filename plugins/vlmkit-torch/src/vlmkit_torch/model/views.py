"""Three views of one transformers model, sharing every weight.

- Prepare: the family's own code up to its decoder, whose arguments are recorded. These are
  embeddings with merged images, positions, masks, and further arguments for each token.
- decoder: tokens of many sequences -> hidden states, with paged attention.
- head: hidden states -> logits, with every scaling and cap of the family.

A view consists of shallow copies with one child replaced. transformers is not patched, and no
weight is copied.
"""

# ruff: noqa: SLF001 - views access private attributes of modules, in this file only

import copy
import inspect
import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function, sdpa_mask

from vlmkit_torch.attention.paged import IMPLEMENTATION, install
from vlmkit_torch.model.merging import base_of
from vlmkit_torch.model.nesting import decoder_of, head_of, replace_attention, with_replaced

PROBE = "vlmkit_probe"
NO_MASKS = "vlmkit_no_masks"
MASK_ROWS = 256  # of a mask that are computed at once


class Views:
    """The three views of a model."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.base: Any = base_of(model)
        self.decoder: Any = decoder_of(model)
        self.text_config = model.config.get_text_config()
        self.has_prepare = self.base is not self.decoder and hasattr(
            self.base, "get_image_features"
        )
        self._layout = self._preparing(PROBE) if self.has_prepare else None
        self._merge = self._preparing(NO_MASKS) if self.has_prepare else None
        self._head = head_of(model, self.decoder)

    def use_paged_attention(self) -> None:
        """Switch the decoder to paged attention; towers keep their own."""
        install()
        self.set_attention(IMPLEMENTATION)

    def set_attention(self, implementation: str) -> None:
        """Switch the attention implementation of the decoder only.

        Raises:
            CheckpointError: the family's code does not allow another attention.
        """
        replace_attention(self.decoder, implementation)

    def prepare(self, inputs: Mapping[str, Any], *, wants_masks: bool = False) -> dict[str, Any]:
        """Run the family's own merging code; return the arguments of its decoder.

        Only families with images have this view. One thread may run it with masks while another
        runs it without.

        Args:
            inputs: of the family's own code.
            wants_masks: whether to compute ``attention_mask``; see :func:`_unusual_mask`.
        """
        view = self._layout if wants_masks else self._merge
        if view is None:
            raise RuntimeError("a text-only family has no prepare view")
        return view.arguments(inputs)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits ``[rows, vocab]`` of hidden states ``[rows, hidden]``."""
        logits: torch.Tensor = self._head(inputs_embeds=hidden[None]).logits[0]
        return logits

    def renew_head(self) -> None:
        """Rebuild the view of the head after the model's head was replaced."""
        self._head = head_of(self.model, self.decoder)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the decoder's embeddings of token ids."""
        rows: torch.Tensor = self.decoder.get_input_embeddings()(token_ids)
        return rows

    def text_tokens(self, count: int) -> tuple[int, ...]:
        """Return arbitrary text tokens of the model; fewer if its vocabulary is tiny."""
        rows = self.decoder.get_input_embeddings().weight.shape[0]
        vocab = min(rows, getattr(self.text_config, "vocab_size", rows))  # some rows have no logit
        kinds = ("image", "video", "audio")
        names = (f"{kind}{side}_token_id" for kind in kinds for side in ("", "_start", "_end"))
        special = {getattr(self.model.config, name, None) for name in names}
        candidates = ((7 + 37 * number) % vocab for number in range(4 * count))
        return tuple(token for token in candidates if token not in special)[:count]

    def prepare_takes(self, name: str) -> bool:
        """Whether the family's own code has an argument of this name."""
        return name in _names(self.base.forward)

    def requires_images(self) -> bool:
        """Whether the family's own code requires image features even for a text."""
        arguments = inspect.signature(self.base.forward).parameters
        pixels = arguments.get("pixel_values")
        return pixels is not None and pixels.default is pixels.empty

    def positional_inputs(self) -> frozenset[str]:
        """Return the processor outputs that the family computes image positions from."""
        known = {"input_ids", "attention_mask", "mm_token_type_ids", "kwargs"}
        return self._positional_arguments() - known

    def positions_take_mask(self) -> bool:
        """Whether the family needs an attention mask to compute positions.

        Without a mask, Qwen's Omni models give an image's tokens consecutive positions.
        """
        return "attention_mask" in self._positional_arguments()

    def _positional_arguments(self) -> frozenset[str]:
        rope_index = getattr(self.base, "get_rope_index", None)
        return frozenset() if rope_index is None else frozenset(_names(rope_index))

    def _preparing(self, masks: str) -> "_PrepareView":
        AttentionMaskInterface.register(PROBE, _unusual_mask)
        AttentionMaskInterface.register(NO_MASKS, _no_mask)
        return _PrepareView(self.base, self.decoder, masks)


def _names(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


class _PrepareView:
    """A copy of a base model that runs up to its decoder, for one caller at a time.

    The lock is needed because some families store state on their modules while they run.
    """

    def __init__(self, base: Any, decoder: Any, masks: str) -> None:
        self._recorder = _Recorder(decoder)
        self._view = with_replaced(base, decoder, self._recorder)
        self._view.config = copy.deepcopy(base.config)  # only this view has the mask function
        self._view.config.get_text_config()._attn_implementation_internal = masks
        self._lock = threading.Lock()
        arguments = inspect.signature(base.forward).parameters.values()
        self._absent = {
            it.name: None
            for it in arguments
            if it.default is it.empty and it.kind is it.POSITIONAL_OR_KEYWORD
        }

    def arguments(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run the family's code; return the decoder's arguments."""
        with self._lock:
            if "rope_deltas" in vars(self._view):
                self._view.rope_deltas = None  # of the previous prompt
            try:
                self._view(**{**self._absent, **inputs}, use_cache=False)
            except _Recorded:
                return self._recorder.take()
        raise RuntimeError("the decoder was never reached")


def _no_mask(**_: Any) -> None:
    """Build no mask."""


def _unusual_mask(**kwargs: Any) -> torch.Tensor | None:
    """Return a family's mask, built a few rows at a time.

    The whole mask of a long prompt has billions of entries.

    Returns:
        ``[1, 1, seq, 2]`` int64, the first token that each token sees and one past the last;
        ``[1, 1, seq, seq]`` bool if some token's range has holes; None if attention is causal.
    """
    if kwargs.get("mask_function", causal_mask_function) is causal_mask_function:
        return None
    first, stop = kwargs.get("q_offset", 0), kwargs["q_length"]
    made = {**kwargs, "allow_is_causal_skip": False}
    intervals = []
    for row in range(0, stop, MASK_ROWS):
        part = {"q_offset": first + row, "q_length": min(MASK_ROWS, stop - row)}
        mask = sdpa_mask(**{**made, **part})
        if mask is None:
            return None
        visible = mask.to(torch.uint8)
        start = visible.argmax(-1)  # of equal values the first
        end = visible.shape[-1] - visible.flip(-1).argmax(-1)
        if not torch.equal(visible.count_nonzero(-1), end - start):
            return sdpa_mask(**made)
        intervals.append(torch.stack([start, end], -1))
    return torch.cat(intervals, 2)


class _Recorded(Exception):  # noqa: N818 - a signal, not an error
    """Signals that the decoder was reached and its arguments are recorded."""


class _Standin(nn.Module):
    """Replaces a module in a view; everything but ``forward`` is the module's own."""

    def __init__(self, target: nn.Module) -> None:
        super().__init__()
        object.__setattr__(self, "target", target)  # not a child: weights stay where they are

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(object.__getattribute__(self, "target"), name)


class _Recorder(_Standin):
    """Replaces the decoder, records its arguments and stops the forward pass."""

    arguments: dict[str, Any] | None = None

    def forward(self, *args: Any, **kwargs: Any) -> None:
        if args:
            names = _names(self.target.forward)
            kwargs = {**dict(zip(names, args, strict=False)), **kwargs}
        self.arguments = kwargs
        raise _Recorded

    def take(self) -> dict[str, Any]:
        arguments, self.arguments = self.arguments, None
        return arguments or {}
