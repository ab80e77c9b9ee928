"""Chat templates with different formats of tool calls, in our own words, and their tokens."""

from transformers import PreTrainedTokenizerFast

from zoo.tokenizer import byte_level

MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]")
_HEAD = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}{% if m.tool_calls %}"
)
_TAIL = (
    "{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_EACH = "{% for c in m.tool_calls %}{% set f = c.function %}"
_ASSISTANTS = {
    "hermes": _EACH + '{{ "\\n" }}<tool_call>\n{"name": "{{ f.name }}", "arguments": '
    "{{ f.arguments | tojson }}}\n</tool_call>{% endfor %}",
    "qwen_tags": _EACH + "{{ '\\n' }}<tool_call>\n<function={{ f.name }}>\n"
    "{% for k, v in f.arguments.items() %}<parameter={{ k }}>\n"
    "{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}"
    "</function>\n</tool_call>{% endfor %}",
    "glm": _EACH + "{{ '\\n' }}<tool_call>{{ f.name }}\n{% for k, v in f.arguments.items() %}"
    "<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v if v is string else v | tojson }}</arg_value>\n"
    "{% endfor %}</tool_call>{% endfor %}",
    "mistral": "[TOOL_CALLS] [" + _EACH + '{"name": "{{ f.name }}", "arguments": '
    '{{ f.arguments | tojson }}, "id": "{{ c.id }}"}{% if not loop.last %}, {% endif %}'
    "{% endfor %}]",
    "mistral_named": _EACH + "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}{% endfor %}",
    "granite": "<|tool_call|>[" + _EACH + "{{ f | tojson }}{% if not loop.last %}, {% endif %}"
    "{% endfor %}]",
    "llama": _EACH + '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}'
    "{% if not loop.last %}; {% endif %}{% endfor %}",
    "derived object": "<act>[" + _EACH + '{"tool": "{{ f.name }}", "input": '
    "{{ f.arguments | tojson }}}{% if not loop.last %}, {% endif %}{% endfor %}]</act>",
    "derived name": _EACH + "<call>{{ f.name }}<with>{{ f.arguments | tojson }}</call>{% endfor %}",
}
TEMPLATES = {name: _HEAD + calls + _TAIL for name, calls in _ASSISTANTS.items()}
STRANGE = _HEAD + _EACH + "{{ f.name }}({{ f.arguments.city }}){% endfor %}" + _TAIL


def vocabulary(*, has_tokens: bool) -> PreTrainedTokenizerFast:
    """Return a vocabulary for any of the templates, in which marks are tokens, or are not."""
    named = {"eos_token": "<|im_end|>"}
    plain = MARKS if has_tokens else ()
    return byte_level(("<|im_start|>", "<|im_end|>"), named=named, plain=plain)
