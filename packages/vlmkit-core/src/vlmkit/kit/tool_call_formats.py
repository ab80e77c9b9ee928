"""How families of models write calls of tools; data alone.

A name is what most call the format. Which one a model has is found by trying: the one that reads
what the model's own template writes.
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
"""Formats by name, of which those come first that are not easily taken for another."""

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
"""Formats of answers that are messages in channels, by name."""
