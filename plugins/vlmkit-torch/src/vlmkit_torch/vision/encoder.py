"""The vision encoder: a family's own image tower and projector, run ahead of the language model.

Returns separate rows for each image, so that images can be cached and recombined. Does not
interpret the rows; the engine does.

The encoder runs in another thread than the engine, at the same time. Both share weights, which
neither changes, and no module stores state for both. (The Prepare view has its own state and never
gets pixels.) On MPS they take turns.
"""

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import transformers

from vlmkit.errors import CheckpointError, ImageError, OutOfMemory, VlmkitError
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import Array, MediaSlot
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.traces import trace_of
from vlmkit.plugins.registry import BuildContext
from vlmkit_torch.cross_attention.spec import STATES, CrossAttentionSpec, cross_attention_spec
from vlmkit_torch.devices import faults, hardware
from vlmkit_torch.loading.weights import LoadedModel, shared_model
from vlmkit_torch.model.features import DEEPSTACK, DEEPSTACK_AT, MARKS, to_tensor
from vlmkit_torch.model.merging import base_of
from vlmkit_torch.settings import EncoderSettings

log = logging.getLogger(__name__)

CPU = torch.device("cpu")


class TorchVisionEncoder:
    """Computes image features with transformers' own ``get_image_features``.

    Args:
        loaded: the whole model.
        files: what it was loaded from.
        max_batch_images: most images in one call of the tower.
    """

    media_kinds = frozenset({"image"})

    def __init__(self, loaded: LoadedModel, files: Checkpoint, max_batch_images: int) -> None:
        self._loaded = loaded
        self._tower = self._tower_of(base_of(loaded.model))
        self._names = frozenset(inspect.signature(self._tower).parameters)
        self._max_batch_images = max_batch_images
        self._files = files

    @property
    def identity(self) -> str:
        """What computes the features: weights, precision, device, library. Reads the files."""
        loaded = self._loaded
        return (
            f"torch:{self._files.fingerprint}:{loaded.dtype}:{loaded.device.type}:"
            f"transformers-{transformers.__version__}"
        )

    def encode(self, slots: Sequence[MediaSlot]) -> list[MediaFeatures]:
        """Return the features of each image, in order.

        Adjacent images whose arrays can be joined are computed in one call.

        Raises:
            ImageError: the tower fails at one image, or returns another number of rows than the
                prompt has placeholders.
            EngineError: the device failed.
            OutOfMemory: the device has too little memory now.
        """
        try:
            return self._encode_groups(slots)
        except Exception as error:
            if not faults.is_out_of_memory(error):
                if len(slots) > 1 or isinstance(error, VlmkitError) or faults.is_of_device(error):
                    raise
                log.warning("the image tower failed at one image\n%s", trace_of(error))
                raise ImageError("the model's image tower cannot take this image") from error
            log.warning("there was no room for %d images: %s", len(slots), error)
        # Outside the handler, because the error references what the tower had computed.
        with hardware.exclusive(self._loaded.device):
            faults.free_memory(self._loaded.device)
        raise OutOfMemory("the images of this request")

    @property
    def precision(self) -> str:
        """The data type that the tower computes with, such as ``bfloat16``."""
        return str(self._loaded.dtype).removeprefix("torch.")

    def computes_with(self, model: object) -> bool:
        """Return whether its weights are those of ``model``, and not a copy."""
        return self._loaded.model is model

    def to_host(self, features: MediaFeatures) -> MediaFeatures:
        """Return equal features on the CPU, with float32 in place of bfloat16."""
        arrays = {name: _on_host(array) for name, array in features.extra.items()}
        rows = _on_host(features.embeddings)
        num_bytes = sum(each.numel() * each.element_size() for each in (rows, *arrays.values()))
        return MediaFeatures(features.num_tokens, rows, arrays, num_bytes)

    def close(self) -> None:
        """Release the weights."""
        del self._loaded, self._tower

    def _tower_of(self, base: Any) -> Any:
        """Return a function of a processor's arrays, by name."""
        return base.get_image_features

    def _encode_groups(self, slots: Sequence[MediaSlot]) -> list[MediaFeatures]:
        features: list[MediaFeatures] = []
        for group in _groups(slots, self._max_batch_images):
            device = self._loaded.device
            with hardware.exclusive(device), hardware.capture_lock(device):
                features += self._encode_group(group)
        return features

    @torch.no_grad()
    def _encode_group(self, slots: Sequence[MediaSlot]) -> list[MediaFeatures]:
        output = self._tower(**self._inputs(slots), return_dict=True)
        counts = [slot.num_features for slot in slots]
        layers = dict(_layers(output))
        marks = {MARKS: output[MARKS]} if output.get(MARKS) is not None else {}
        total = {name: rows.shape[0] for name, rows in layers.items()}
        if set(total.values()) == {sum(counts)}:
            split = {name: torch.split(rows, counts) for name, rows in layers.items()}
            return [
                _features({name: rows[i] for name, rows in split.items()} | marks)
                for i in range(len(slots))
            ]
        if len(slots) > 1:  # this family pads or packs a batch
            return [features for slot in slots for features in self._encode_group([slot])]
        raise ImageError(
            f"the model's image tower gives {sorted(set(total.values()))} features for this image, "
            f"and its prompt has {counts[0]} places"
        )

    def _inputs(self, slots: Sequence[MediaSlot]) -> dict[str, torch.Tensor]:
        names = [name for name in slots[0].inputs if name in self._names]
        device, dtype = self._loaded.device, self._loaded.dtype
        return {
            name: torch.cat([_placed(slot.inputs[name], device, dtype) for slot in slots])
            for name in names
        }


class CrossAttentionEncoder(TorchVisionEncoder):
    """Computes what a decoder attends to, one image at a time: its towers see all tiles at once.

    The features are the rows from which the decoder computes keys and values. No row replaces a
    token, so the slot's own row only satisfies the interface and ``extra`` holds the rows.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        files: Checkpoint,
        max_batch_images: int,
        spec: CrossAttentionSpec,
    ) -> None:
        super().__init__(loaded, files, max_batch_images)
        self._spec = spec

    def _tower_of(self, base: Any) -> Callable[..., torch.Tensor]:
        def tower(
            pixel_values: torch.Tensor,
            aspect_ratio_ids: torch.Tensor,
            aspect_ratio_mask: torch.Tensor,
        ) -> torch.Tensor:
            """Return ``[tiles, rows, hidden]`` of one image, padding tiles included."""
            seen = base.vision_model(pixel_values, aspect_ratio_ids, aspect_ratio_mask)
            rows: torch.Tensor = base.multi_modal_projector(seen.last_hidden_state)
            return rows.flatten(0, 2)

        return tower

    @torch.no_grad()
    def _encode_group(self, slots: Sequence[MediaSlot]) -> list[MediaFeatures]:
        return [self._encode_one(slot) for slot in slots]

    def _encode_one(self, slot: MediaSlot) -> MediaFeatures:
        tiles = self._tower(**self._inputs([slot]))[: self._spec.num_tiles(slot)]
        states = hardware.for_any_thread(tiles.flatten(0, 1).clone())
        own = states[: slot.num_features].clone()
        num_bytes = (states.numel() + own.numel()) * states.element_size()
        return MediaFeatures(slot.num_features, own, {STATES: states}, num_bytes)


def build(context: BuildContext) -> TorchVisionEncoder:
    """Return an encoder that uses the pipeline's model.

    Raises:
        CheckpointError: the model has no image tower that can run alone.
    """
    settings: EncoderSettings = context.settings or EncoderSettings()
    loaded = shared_model(context, for_engine=False)
    return encoder_of(loaded, context.files, settings.max_batch_images)


def encoder_of(loaded: LoadedModel, files: Checkpoint, max_batch_images: int) -> TorchVisionEncoder:
    """Return an encoder that uses a model.

    Raises:
        CheckpointError: the model has no image tower that can run alone.
    """
    if (spec := cross_attention_spec(loaded.model)) is not None:
        return CrossAttentionEncoder(loaded, files, max_batch_images, spec)
    if not hasattr(base_of(loaded.model), "get_image_features"):
        raise CheckpointError(
            f"model type {loaded.model.config.model_type!r} has no image tower of its own"
        )
    return TorchVisionEncoder(loaded, files, max_batch_images)


# Arrays that cannot be joined with those of other images: indices that count from the first row of
# another array, and pixels of one strip, whose first axis is not a batch.
_NOT_JOINABLE = frozenset({"image_token_pooling", "target_sizes"})


def _groups(slots: Sequence[MediaSlot], most: int) -> Iterator[list[MediaSlot]]:
    """Yield runs of adjacent images whose arrays can be joined along the first axis."""
    group: list[MediaSlot] = []
    for slot in slots:
        is_alone = not _NOT_JOINABLE.isdisjoint(slot.inputs)
        if group and (is_alone or len(group) == most or _signature(slot) != _signature(group[0])):
            yield group
            group = []
        group.append(slot)
    if group:
        yield group


def _signature(slot: MediaSlot) -> dict[str, tuple[int, ...]]:
    return {name: tuple(array.shape[1:]) for name, array in slot.inputs.items()}


def _layers(output: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the rows ``[rows, hidden]`` of all images, then those of each deepstack level."""
    main = output.get("pooler_output")
    deepstack = output.get("deepstack_features")
    if main is None and deepstack is None:
        main = output.last_hidden_state
    if main is not None:
        yield "", _rows(main)
    for number, level in enumerate(deepstack or ()):
        if isinstance(level, tuple) and isinstance(level[0], int):
            yield f"{DEEPSTACK_AT}{level[0]}", _rows(level[1])
        else:
            yield f"{DEEPSTACK}{number}", _rows(level)


def _rows(value: torch.Tensor | Iterable[torch.Tensor]) -> torch.Tensor:
    parts = [value] if isinstance(value, torch.Tensor) else list(value)
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])


def _placed(array: Array, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return an array on a device; of a model without numbers, only pixels have none either.

    Sizes of images keep their numbers, because shapes follow from them.
    """
    is_placed = isinstance(array, torch.Tensor) and array.is_meta
    if device.type == "meta" and not is_placed:
        tensor = to_tensor(array, CPU)
        if not tensor.is_floating_point():
            return tensor
    return to_tensor(array, device, dtype)


def _features(layers: dict[str, torch.Tensor]) -> MediaFeatures:
    """Return one image's features, with a copy of its rows."""
    own = {name: hardware.for_any_thread(rows.clone()) for name, rows in layers.items()}
    main = own.pop("", None)
    if main is None:  # a family with deepstack rows only
        main = torch.zeros_like(next(iter(own.values())))
    num_bytes = sum(rows.numel() * rows.element_size() for rows in (main, *own.values()))
    return MediaFeatures(main.shape[0], main, own, num_bytes)


def _on_host(array: Array) -> torch.Tensor:
    tensor = to_tensor(array, CPU)
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor
