"""What a family makes of a prompt: positions, masks, and embeddings with the images merged in.

Asks the Prepare view, so that every rule is the family's own. The layout (positions and masks)
depends on the tokens and the images' sizes only and is read without any features; embeddings are
read when features arrive, with zero rows for images that are cached already or not reached yet.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from vlmkit.errors import EngineError
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import MediaSlot, Prompt, Span
from vlmkit_torch.attention.layer_kind import Visibility
from vlmkit_torch.cross_attention.family import Sight, crossing_of
from vlmkit_torch.model.features import FeatureForm, blank, compose, to_tensor
from vlmkit_torch.model.views import Views

TYPES = "mm_token_type_ids"
EXPERT_TYPES = "moe_mm_token_type_ids"  # which experts a token goes to: those of text, or of images
EXPERT_TOKENS = ("image_token_id", "image_start_token_id", "image_end_token_id")
VISUAL_MASKS = ("visual_pos_masks", "vision_mask")
NOT_PER_TOKEN = frozenset(
    {
        "attention_mask",
        "cache_position",
        "input_ids",
        "labels",
        "logits_to_keep",
        "mm_encoder_outputs",
        "output_attentions",
        "output_hidden_states",
        "past_key_values",
        "position_ids",
        "return_dict",
        "use_cache",
        *VISUAL_MASKS,
    }
)
# Families that type the whole prompt 0 where others type image tokens 1. Their processors take no
# prompt without an image; transformers reads one that has no types as text, and so typed 1.
PREFIX_TYPED = frozenset({"paligemma"})
NUM_SAMPLE_TOKENS = 24  # of a text that shows how a family reads text
MANY_AXES = 3  # rows of positions: time, height, width; a fourth before them is the token's index


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a prompt's tokens stand and what they see; known to the host.

    Attributes:
        positions: ``[axes, seq]``; None where token ``i`` stands at ``i``.
        offset: token ``i`` after the prompt stands at ``i + offset``.
        views: the family's own masks by kind of layer, where not simply causal.
        sights: who looks at each picture, where that is not merged into the embeddings.
    """

    positions: np.ndarray | None
    offset: int
    views: dict[str, Visibility] = field(default_factory=dict)
    sights: tuple[Sight, ...] = ()

    @property
    def num_axes(self) -> int:
        """Rows of the positions."""
        return 1 if self.positions is None else self.positions.shape[0]

    @property
    def is_of_text(self) -> bool:
        """Whether tokens see what stands before them, and stand one after the other."""
        if self.positions is None or self.views:
            return not self.views
        return np.array_equal(self.positions, self._run(self.positions.shape[1]))

    def of_length(self, count: int) -> "Layout":
        """Return what such a layout is for another number of tokens."""
        if self.positions is None:
            return self
        return Layout(self._run(count), self.offset)

    def _run(self, count: int) -> np.ndarray:
        assert self.positions is not None  # noqa: S101 - the callers saw to it
        return self.positions[:, :1] + np.arange(count)

    def spans(self) -> tuple[Span, ...]:
        """Return the token ranges in which some token sees a later one."""
        if not self.views:
            return ()
        stops = np.stack([view.stop for view in self.views.values()]).max(0).tolist()
        spans: list[Span] = []
        for index, stop in enumerate(stops):
            if stop <= index + 1:
                continue
            if spans and index < spans[-1].stop:
                spans[-1] = Span(spans[-1].start, max(stop, spans[-1].stop))
            else:
                spans.append(Span(index, stop))
        return tuple(spans)


@dataclass(frozen=True, slots=True)
class Embeds:
    """A prompt's decoder arguments, token by token.

    Attributes:
        images: the images whose features are in them.
        per_token: ``[1, seq, ...]`` by argument name.
        per_visual: by argument name a list, or a dictionary by layer, of ``[visual, hidden]``.
        visual: ``[seq]`` bool on the host, the tokens that have rows in ``per_visual``; None if
            none have.
        visual_name: the argument that tells the decoder about them.
        visual_width: their last axis in that argument; 0 if it has none.
    """

    images: frozenset[int]
    per_token: dict[str, torch.Tensor]
    per_visual: dict[str, Any] = field(default_factory=dict)
    visual: np.ndarray | None = None
    visual_name: str = ""
    visual_width: int = 0


class PromptReader:
    """Reads prompts through the Prepare view of one model.

    Args:
        views: of the model.
        device: where the arrays go.
        dtype: of embeddings.
    """

    def __init__(self, views: Views, device: torch.device, dtype: torch.dtype) -> None:
        self.views = views
        self.device = device
        self.dtype = dtype
        config = views.model.config
        self._image_token = getattr(config, "image_token_id", None)
        ids = {getattr(config, name, None) for name in EXPERT_TOKENS} - {None}
        has_experts = views.has_prepare and views.prepare_takes(EXPERT_TYPES)
        self._expert_tokens = torch.tensor(sorted(ids), device=device) if has_experts else None
        self._is_prefix_typed = config.model_type in PREFIX_TYPED
        self._positional = views.positional_inputs()
        self._masks_padding = views.positions_take_mask()
        self._wants_images = views.has_prepare and views.wants_images()
        self._form: FeatureForm | None = None
        self.crossing = crossing_of(views.model)
        text = self._ask(Prompt(views.text_tokens(NUM_SAMPLE_TOKENS)))
        self._text = text if text.is_of_text else None

    @cached_property
    def no_picture(self) -> torch.Tensor:
        """Zeros ``[1, hidden]``: what is looked at where no picture is new."""
        width = self.views.text_config.hidden_size
        return torch.zeros(1, width, device=self.device, dtype=self.dtype)

    def layout(self, prompt: Prompt) -> Layout:
        """Return positions and masks of a prompt; image features play no part.

        What a family makes of text is known: its own code, which makes masks of all tokens by all
        tokens, is asked where there are images only.
        """
        if prompt.media or self._text is None:
            return self._ask(prompt)
        return self._text.of_length(len(prompt))

    def _ask(self, prompt: Prompt) -> Layout:
        """Return the layout by the family's own code."""
        if self.crossing is not None:
            return Layout(None, 0, sights=self.crossing.sights(prompt))
        if not self.views.has_prepare:
            return Layout(None, 0)
        arguments = self.views.prepare(self._inputs(prompt), wants_masks=True)
        count = len(prompt)
        positions = _positions(arguments.get("position_ids"))
        views = _visibilities(arguments.get("attention_mask"), count)
        if positions is None or (
            positions.shape[0] == 1 and np.array_equal(positions[0], np.arange(count))
        ):
            return Layout(None, 0, views)
        highest = int(positions[-MANY_AXES:].max())
        return Layout(positions, highest + 1 - count, views)

    def embeds(self, prompt: Prompt, features: Mapping[int, MediaFeatures]) -> Embeds:
        """Return the decoder's arguments for a prompt, with the features that are there.

        Raises:
            EngineError: the features do not fit the prompt's placeholders.
        """
        images = frozenset(features)
        inputs = self._inputs(prompt)
        if not features:
            return self._sort(self.views.prepare(inputs), len(prompt), images)
        for form in FeatureForm if self._form is None else [self._form]:
            output = compose(form, prompt.media, features, self.device, self.dtype)
            try:
                arguments = self.views.prepare({**inputs, "mm_encoder_outputs": {"image": output}})
            except (TypeError, AttributeError):
                continue  # the family wants the rows in another container
            except (ValueError, RuntimeError) as error:
                raise EngineError(
                    "image features do not fit the prompt: the tokenizer expects "
                    f"{sum(slot.num_features for slot in prompt.media)} rows"
                ) from error
            self._form = form
            return self._sort(arguments, len(prompt), images)
        raise EngineError("the model takes image features in no form that is known")

    def plain(self, token_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the decoder's arguments for text tokens ``[1, tokens]``, wherever they stand."""
        if not self.views.has_prepare:
            return {"inputs_embeds": self.views.embed(token_ids)}
        inputs = {"input_ids": token_ids, "position_ids": torch.zeros_like(token_ids)}
        inputs |= self.experts(token_ids)
        arguments = self.views.prepare({**inputs, **self._blank(())})
        return self._sort(arguments, token_ids.shape[1], frozenset()).per_token

    def typed(self, prompt: Prompt) -> dict[str, torch.Tensor]:
        """Return a prompt's token ids, and their types where the family has some."""
        ids = torch.tensor([prompt.token_ids], device=self.device)
        inputs = {"input_ids": ids, **self.experts(ids)}
        is_image = torch.eq(ids, -1 if self._image_token is None else self._image_token).long()
        if self.views.prepare_takes(TYPES):
            inputs[TYPES] = self._types(prompt, is_image)
        if self.views.prepare_takes("token_type_ids"):
            is_text = torch.full_like(ids, 0 if prompt.media else 1)
            inputs["token_type_ids"] = is_text if self._is_prefix_typed else is_image
        return inputs

    def experts(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return which tokens go to the experts of images, where a family has such."""
        if self._expert_tokens is None:
            return {}
        return {EXPERT_TYPES: torch.isin(ids, self._expert_tokens).long()}

    def _inputs(self, prompt: Prompt) -> dict[str, Any]:
        """Return what the family's code needs to place images: ids, token types, sizes."""
        inputs = self.typed(prompt)
        if self._masks_padding:
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        for name in self._positional:
            if prompt.media and name in prompt.media[0].inputs:
                parts = [self._array(slot, name) for slot in prompt.media]
                inputs[name] = torch.cat(parts)
        return {**inputs, **self._blank(prompt.media)}

    def _blank(self, slots: Sequence[MediaSlot]) -> dict[str, Any]:
        """Return features of nothing, for families whose code wants some in any case."""
        if not self._wants_images:
            return {}
        like = self.views.decoder.get_input_embeddings().weight
        return {"mm_encoder_outputs": {"image": blank(slots, like)}}

    def _types(self, prompt: Prompt, is_image: torch.Tensor) -> torch.Tensor:
        """Return which tokens are images', as those say whose other tokens are so, too."""
        types = is_image.clone()
        for slot in prompt.media:
            if TYPES in slot.inputs:
                types[0, slot.start : slot.stop] = self._array(slot, TYPES)
        return types

    def _array(self, slot: MediaSlot, name: str) -> torch.Tensor:
        return to_tensor(slot.inputs[name], self.device)

    def _sort(self, arguments: dict[str, Any], count: int, images: frozenset[int]) -> Embeds:
        """Sort recorded arguments into those per token and those per visual token."""
        if arguments.get("inputs_embeds") is None:
            arguments["inputs_embeds"] = self.views.embed(arguments["input_ids"])
        name = next((n for n in VISUAL_MASKS if arguments.get(n) is not None), "")
        mask = arguments.get(name)
        per_token, per_visual = {}, {}
        for key, value in arguments.items():
            if key in NOT_PER_TOKEN or value is None or isinstance(value, bool | int | float | str):
                continue
            if isinstance(value, torch.Tensor) and value.ndim > 1 and value.shape[1] == count:
                per_token[key] = value
            elif isinstance(value, list | tuple | dict) and mask is not None:
                per_visual[key] = value
            elif isinstance(value, torch.Tensor | list | tuple | dict) and len(value):
                raise EngineError(f"the model's decoder needs {key!r}, which cannot be cut")
        if mask is None:
            return Embeds(images, per_token)
        width = mask.shape[-1] if mask.ndim > 2 else 0  # [1, seq] or [1, seq, hidden]
        visual = mask[0, :, 0] if width else mask[0]
        return Embeds(images, per_token, per_visual, _on_host(visual), name, width)


def _positions(value: torch.Tensor | None) -> np.ndarray | None:
    """Return positions as ``[axes, seq]``, from ``[1, seq]`` or ``[axes, 1, seq]``."""
    return None if value is None else _on_host(value.reshape(-1, value.shape[-1]))


def _on_host(value: torch.Tensor) -> np.ndarray:
    array: np.ndarray = value.cpu().numpy()
    return array


def _visibilities(masks: Any, count: int) -> dict[str, Visibility]:
    """Turn a family's masks into intervals, if any token sees a later one.

    A mask that only looks back is left out: the layer's own window says the same.
    """
    if isinstance(masks, torch.Tensor):
        masks = {"full_attention": masks}
    views, looks_ahead = {}, False
    for name, mask in (masks or {}).items():
        if not isinstance(mask, torch.Tensor) or mask.ndim != 4:
            continue
        views[name] = view = _visibility(mask[0, 0], count)
        looks_ahead |= view.dense is not None or bool((view.stop > np.arange(count) + 1).any())
    return views if looks_ahead else {}


def _visibility(mask: torch.Tensor, count: int) -> Visibility:
    """Read intervals ``[seq, 2]``, or a mask ``[seq, seq]`` whose views have holes."""
    if mask.dtype == torch.int64:
        return Visibility(*_on_host(mask).T)
    visible = mask[:, :count]
    visible = visible if visible.dtype == torch.bool else visible > -1
    index = torch.arange(count, device=visible.device)
    start = torch.where(visible, index, count).amin(1)
    stop = torch.where(visible, index + 1, 0).amax(1)
    has_holes = not torch.equal(visible.sum(1), stop - start)
    return Visibility(_on_host(start), _on_host(stop), visible if has_holes else None)
