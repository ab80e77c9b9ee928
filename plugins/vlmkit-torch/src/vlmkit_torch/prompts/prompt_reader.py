"""Reads prompts: positions, masks, and embeddings with the images merged in.

Runs the Prepare view, so that every rule is the family's own. The layout depends on the tokens and
the images' sizes only, and is read without features. Embeddings are read when features arrive, with
zero rows for images that are already cached or not reached yet.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from vlmkit.errors import EngineError
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit_torch.cross_attention.spec import cross_attention_spec
from vlmkit_torch.model.features import FeatureForm, blank, compose, to_tensor
from vlmkit_torch.model.views import Views
from vlmkit_torch.prompts.layout import Layout, on_host, positions_on_host, visibilities

TYPES = "mm_token_type_ids"
EXPERT_TYPES = "moe_mm_token_type_ids"  # whether a token goes to the experts of text or of images
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
# Families that type all tokens of a prompt 0, whereas others type image tokens 1. Their processors
# reject a prompt without an image; transformers types all tokens of such a prompt 1.
PREFIX_TYPED = frozenset({"paligemma"})
NUM_SAMPLE_TOKENS = 24  # of a text from which the family's layout of text is read
MAX_PLAIN_AXES = 3  # rows of positions: time, height, width; a fourth row is the token's index


@dataclass(frozen=True, slots=True)
class Embeds:
    """A prompt's decoder arguments, token by token.

    Attributes:
        images: the images whose features are merged.
        per_token: ``[1, seq, ...]`` by argument name.
        per_visual: by argument name a list, or a dictionary by layer, of ``[visual, hidden]``.
        visual: ``[seq]`` bool on the host, the tokens with rows in ``per_visual``; None if there
            are none.
        visual_name: the decoder's argument for that mask.
        visual_width: last axis of that argument; 0 if it has none.
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
        self._requires_images = views.has_prepare and views.requires_images()
        self._form: FeatureForm | None = None
        self.cross_attention = cross_attention_spec(views.model)
        text = self._read_layout(Prompt(views.text_tokens(NUM_SAMPLE_TOKENS)))
        self._text = text if text.is_plain_text else None

    @property
    def may_have_image_spans(self) -> bool:
        """Whether prompts may have masks of their own: families that type tokens to mask them."""
        return self.views.has_prepare and self.views.prepare_takes("token_type_ids")

    @cached_property
    def no_image(self) -> torch.Tensor:
        """Zeros ``[1, hidden]``: encoder rows for cross-attention if no image is new."""
        width = self.views.text_config.hidden_size
        return torch.zeros(1, width, device=self.device, dtype=self.dtype)

    def layout(self, prompt: Prompt) -> Layout:
        """Return positions and masks of a prompt.

        The family's own code builds masks of all tokens by all tokens, so it runs only for prompts
        with images. The layout of text is known from a sample.
        """
        if prompt.media or self._text is None:
            return self._read_layout(prompt)
        return self._text.for_length(len(prompt))

    def _read_layout(self, prompt: Prompt) -> Layout:
        """Return the layout by the family's own code."""
        if self.cross_attention is not None:
            spans = self.cross_attention.attending_spans(prompt)
            return Layout(None, 0, attending_spans=spans)
        if not self.views.has_prepare:
            return Layout(None, 0)
        arguments = self.views.prepare(self._inputs(prompt), wants_masks=True)
        count = len(prompt)
        positions = positions_on_host(arguments.get("position_ids"))
        views = visibilities(arguments.get("attention_mask"), count)
        if positions is None or (
            positions.shape[0] == 1 and np.array_equal(positions[0], np.arange(count))
        ):
            return Layout(None, 0, views)
        highest = int(positions[-MAX_PLAIN_AXES:].max())
        return Layout(positions, highest + 1 - count, views)

    def embeds(self, prompt: Prompt, features: Mapping[int, MediaFeatures]) -> Embeds:
        """Return the decoder's arguments for a prompt, with the features that are present.

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
                continue  # the family expects the rows in another container
            except (ValueError, RuntimeError) as error:
                raise EngineError(
                    "image features do not fit the prompt: the tokenizer expects "
                    f"{sum(slot.num_features for slot in prompt.media)} rows"
                ) from error
            self._form = form
            return self._sort(arguments, len(prompt), images)
        raise EngineError("the model takes image features in no form that is known")

    def text_arguments(self, token_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the decoder's arguments for text tokens ``[1, tokens]`` at any positions."""
        if not self.views.has_prepare:
            return {"inputs_embeds": self.views.embed(token_ids)}
        inputs = {"input_ids": token_ids, "position_ids": torch.zeros_like(token_ids)}
        inputs |= self.expert_types(token_ids)
        arguments = self.views.prepare({**inputs, **self._blank(())})
        return self._sort(arguments, token_ids.shape[1], frozenset()).per_token

    def typed_ids(self, prompt: Prompt) -> dict[str, torch.Tensor]:
        """Return a prompt's token ids, with their types if the family has types."""
        ids = torch.tensor([prompt.token_ids], device=self.device)
        inputs = {"input_ids": ids, **self.expert_types(ids)}
        is_image = torch.eq(ids, -1 if self._image_token is None else self._image_token).long()
        if self.views.prepare_takes(TYPES):
            inputs[TYPES] = self._types(prompt, is_image)
        if self.views.prepare_takes("token_type_ids"):
            is_text = torch.full_like(ids, 0 if prompt.media else 1)
            inputs["token_type_ids"] = is_text if self._is_prefix_typed else is_image
        return inputs

    def expert_types(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return which tokens go to the experts of images; empty if the family has none."""
        if self._expert_tokens is None:
            return {}
        return {EXPERT_TYPES: torch.isin(ids, self._expert_tokens).long()}

    def _inputs(self, prompt: Prompt) -> dict[str, Any]:
        """Return what the family's code needs to position images: ids, token types, sizes."""
        inputs = self.typed_ids(prompt)
        if self._masks_padding:
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        for name in self._positional:
            if prompt.media and name in prompt.media[0].inputs:
                parts = [self._array(slot, name) for slot in prompt.media]
                inputs[name] = torch.cat(parts)
        return {**inputs, **self._blank(prompt.media)}

    def _blank(self, slots: Sequence[MediaSlot]) -> dict[str, Any]:
        """Return zero features, for families whose code requires some even for text."""
        if not self._requires_images:
            return {}
        like = self.views.decoder.get_input_embeddings().weight
        return {"mm_encoder_outputs": {"image": blank(slots, like)}}

    def _types(self, prompt: Prompt, is_image: torch.Tensor) -> torch.Tensor:
        """Return token types, with the types that images state for tokens around their own."""
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
        return Embeds(images, per_token, per_visual, on_host(visual), name, width)
