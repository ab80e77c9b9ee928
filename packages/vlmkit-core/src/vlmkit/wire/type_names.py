"""The closed list of types on the wire, with their stable names.

A name never changes its meaning: a type that is replaced gets a new name, and every change of a
type or of its fields raises :data:`vlmkit.wire.frames.PROTOCOL_VERSION`.
"""

from collections.abc import Mapping
from typing import Any

from vlmkit.image_files.decode_cost import DecodeCost
from vlmkit.interfaces.chat_format import (
    CallFormat,
    Calling,
    ChannelFormat,
    JsonCall,
    Mark,
    NamedCall,
    TaggedCall,
)
from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.grounding_format import JsonGrounding, MarkedGrounding
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.interfaces.request_field import FieldFacts
from vlmkit.interfaces.runner import RunnerFacts
from vlmkit.interfaces.sampler import SamplerClaims
from vlmkit.settings.image_tokens import ImageTokens
from vlmkit.settings.images import ImageLimits
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.completion import Choice, Chunk, Completion, Timings, Usage
from vlmkit.types.constraint import JsonObject, JsonSchema, Lark, OneOf, Regex
from vlmkit.types.delta import ReasoningDelta, TextDelta, ToolCallDelta
from vlmkit.types.demand import Demand
from vlmkit.types.grounding import GroundedRegion
from vlmkit.types.image_options import ImageOptions
from vlmkit.types.media import FilePart, MediaPart
from vlmkit.types.message import ImagePart, Message, ReasoningPart, TextPart
from vlmkit.types.pages import Pages
from vlmkit.types.placed_image import PlacedImage
from vlmkit.types.prompt_options import PromptOptions
from vlmkit.types.prompt_tokens import PromptMedium, PromptTokens
from vlmkit.types.request import Request
from vlmkit.types.runner_stats import RunnerStats
from vlmkit.types.sample import Logprob, Sample
from vlmkit.types.sampling import SamplingParams
from vlmkit.types.score import Score
from vlmkit.types.shown_image import ShownImage
from vlmkit.types.stage import ImageTimings, Stage
from vlmkit.types.tool_call import ToolCallPart
from vlmkit.types.tool_choice import NamedTool
from vlmkit.types.transform import TileGrid, Transform

TYPES: Mapping[str, type[Any]] = {
    "request": Request,
    "message": Message,
    "text_part": TextPart,
    "image_part": ImagePart,
    "file_part": FilePart,
    "reasoning_part": ReasoningPart,
    "tool_call": ToolCallPart,
    "placed_image": PlacedImage,
    "image_options": ImageOptions,
    "prompt_options": PromptOptions,
    "pages": Pages,
    "named_tool": NamedTool,
    "sampling_params": SamplingParams,
    "json_schema": JsonSchema,
    "json_object": JsonObject,
    "regex": Regex,
    "one_of": OneOf,
    "lark": Lark,
    "facts": RunnerFacts,
    "engine_limits": EngineLimits,
    "pipeline_settings": PipelineSettings,
    "image_limits": ImageLimits,
    "image_tokens": ImageTokens,
    "sampler_claims": SamplerClaims,
    "field_facts": FieldFacts,
    "demand": Demand,
    "stats": RunnerStats,
    "chunk": Chunk,
    "text": TextDelta,
    "reasoning": ReasoningDelta,
    "call": ToolCallDelta,
    "sample": Sample,
    "logprob": Logprob,
    "region": GroundedRegion,
    "completion": Completion,
    "choice": Choice,
    "usage": Usage,
    "timings": Timings,
    "image_timings": ImageTimings,
    "stage": Stage,
    "shown_image": ShownImage,
    "transform": Transform,
    "tile_grid": TileGrid,
    "score": Score,
    "prompt_tokens": PromptTokens,
    "prompt_medium": PromptMedium,
    "prompt": Prompt,
    "media_slot": MediaSlot,
    "media_features": MediaFeatures,
    "calling": Calling,
    "call_format": CallFormat,
    "json_call": JsonCall,
    "named_call": NamedCall,
    "tagged_call": TaggedCall,
    "channel_format": ChannelFormat,
    "mark": Mark,
    "marked_grounding": MarkedGrounding,
    "json_grounding": JsonGrounding,
    "decode_cost": DecodeCost,
}
"""The types by their names on the wire.

The names ``array``, ``image`` and ``error`` belong to the codec: arrays, images, and errors of
:mod:`vlmkit.errors`.
"""

NOT_SENT: tuple[type[Any], ...] = (MediaPart,)
"""Types of fields whose values are not sent: media of plugins, which the codec does not know."""
