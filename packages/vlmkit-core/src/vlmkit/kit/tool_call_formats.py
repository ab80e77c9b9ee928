"""The tool-call formats of model families, by their common names; data only.

The format of a model is detected: it is the first that parses calls written by the model's own chat
template.
"""

from collections.abc import Mapping
from types import MappingProxyType

from vlmkit.interfaces.chat_format import (
    CallFormat,
    ChannelFormat,
    JsonCall,
    Mark,
    NamedCall,
    TaggedCall,
)

_OPEN, _CLOSE = Mark("<tool_call>"), Mark("</tool_call>")

FORMATS: Mapping[str, CallFormat] = MappingProxyType(
    {
        "hermes": CallFormat(JsonCall(), _OPEN, _CLOSE, before="\n", after="\n", between="\n"),
        "qwen_tags": CallFormat(
            TaggedCall(
                before_name="<function=",
                after_name=">\n",
                before_key="<parameter=",
                after_key=">",
                before_value="\n",
                after_value="\n</parameter>\n",
                end="</function>",
            ),
            _OPEN,
            _CLOSE,
            before="\n",
            after="\n",
            between="\n",
        ),
        "glm": CallFormat(
            TaggedCall(
                before_name="",
                after_name="\n",
                before_key="<arg_key>",
                after_key="</arg_key>\n",
                before_value="<arg_value>",
                after_value="</arg_value>\n",
            ),
            _OPEN,
            _CLOSE,
            between="\n",
        ),
        "mistral_named": CallFormat(NamedCall("[ARGS]"), Mark("[TOOL_CALLS]")),
        "mistral": CallFormat(JsonCall(), Mark("[TOOL_CALLS]"), is_list=True),
        "granite": CallFormat(JsonCall(), Mark("<|tool_call|>"), is_list=True),
        "llama": CallFormat(JsonCall(arguments="parameters"), Mark(""), between="; "),
    }
)
"""Formats by name; the most distinctive ones come first."""

CHANNELS: Mapping[str, ChannelFormat] = MappingProxyType(
    {
        "harmony": ChannelFormat(
            start=Mark("<|start|>"),
            channel=Mark("<|channel|>"),
            kind=Mark("<|constrain|>"),
            body=Mark("<|message|>"),
            end=Mark("<|end|>"),
            last=Mark("<|return|>"),
            call=Mark("<|call|>"),
            role="assistant",
            reasoning="analysis",
            said="final",
            calls="commentary",
            recipient=" to=",
            namespace="functions.",
            json="json",
        ),
    }
)
"""Formats of answers that consist of messages in channels, by name."""
