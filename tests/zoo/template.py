"""Chat templates with the shape of each family's own: the same tokens, order and treatment of
roles, trimming and images, in our own words.
"""

# The parts of a message, in their order.
PARTS = (
    "{% macro say(message, image) %}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ image }}"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{% endmacro %}"
)

LLAVA = (
    "{% for message in messages %}"
    "{% if message['role'] != 'system' %}{{ message['role'].upper() + ': ' }}{% endif %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>\n' }}{% endfor %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ part['text'] + ' ' }}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)

LLAVA_NEXT = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ '<<SYS>>\n' + message['content'][0]['text'] }}"
    "{{ '\n<</SYS>>\n\n' }}"
    "{% elif message['role'] == 'user' %}{{ '[INST] ' }}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>\n' }}{% endfor %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ part['text'] }}{% endfor %}{{ ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}"
    "{{ ' ' + message['content'][0]['text'] + '</s> ' }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}"
    "{% endfor %}"
)

_IDEFICS = (
    "{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% elif part['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}"
    "<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
IDEFICS3 = "<|begin_of_text|>" + _IDEFICS
SMOLVLM = "<|im_start|>" + _IDEFICS

QWEN_VL = (
    PARTS + "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{{ say(message, '<|vision_start|><|image_pad|><|vision_end|>') }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_TOOLS = (
    "{% if tools %}<|im_start|>system\n"
    "{% if messages[0]['role'] == 'system' %}{{ say(messages[0], '') + '\n\n' }}{% endif %}"
    "# Tools\n\nYou may call these:\n<tools>"
    "{% for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}\n</tools>\n"
    "Answer with <tool_call></tool_call>.<|im_end|>\n"
    "{% elif messages[0]['role'] == 'system' %}"
    "<|im_start|>system\n{{ say(messages[0], '') }}<|im_end|>\n{% endif %}"
)

_CALLS = (
    "{% for call in message['tool_calls'] %}"
    "{% if message['content'] or not loop.first %}{{ '\n' }}{% endif %}"
    "{{ '<tool_call>\n{\"name\": \"' + call['function']['name'] }}"
    '{{ \'", "arguments": \' }}'
    "{{ call['function']['arguments'] | tojson }}{{ '}\n</tool_call>' }}{% endfor %}"
)

SMOLVLM_TOOLS = (
    PARTS + "<|im_start|>{% if tools %}Tools: {{ tools | tojson }}<end_of_utterance>\n{% endif %}"
    "{% for message in messages %}{{ message['role'] | capitalize }}: "
    "{{ say(message, '<image>') }}" + _CALLS + "<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""No model of this family has it."""

QWEN3_VL = (
    PARTS + _TOOLS + "{% for message in messages %}"
    "{% if message['role'] == 'user' %}<|im_start|>user\n"
    "{{ say(message, '<|vision_start|><|image_pad|><|vision_end|>') }}<|im_end|>\n"
    "{% elif message['role'] == 'assistant' %}<|im_start|>assistant\n"
    "{{ say(message, '') }}" + _CALLS + "<|im_end|>\n"
    "{% elif message['role'] == 'tool' %}<|im_start|>user\n<tool_response>\n"
    "{{ say(message, '<|vision_start|><|image_pad|><|vision_end|>') }}\n</tool_response>"
    "<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

GEMMA3 = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{% if messages[0]['content'] is string %}{% set first = messages[0]['content'] + '\n\n' %}"
    "{% else %}{% set first = messages[0]['content'][0]['text'] + '\n\n' %}{% endif %}"
    "{% set turns = messages[1:] %}"
    "{% else %}{% set first = '' %}{% set turns = messages %}{% endif %}"
    "{% for message in turns %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + (first if loop.first else '') }}"
    "{% if message['content'] is string %}{{ message['content'] | trim }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<start_of_image>' }}"
    "{% elif part['type'] == 'text' %}{{ part['text'] | trim }}{% endif %}{% endfor %}{% endif %}"
    "{{ '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)

MISTRAL3 = (
    PARTS + "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}[SYSTEM_PROMPT]{{ say(message, '') }}[/SYSTEM_PROMPT]"
    "{% elif message['role'] == 'user' %}[INST]{{ say(message, '[IMG]') }}[/INST]"
    "{% elif message['role'] == 'assistant' %}{{ say(message, '') }}{{ eos_token }}"
    "{% else %}{{ raise_exception('Only user, system and assistant roles are supported!') }}"
    "{% endif %}{% endfor %}"
)

INTERNVL = (
    PARTS + "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ say(message, '<IMG_CONTEXT>\n') }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

GLM4V = (
    PARTS + "[gMASK]<sop>{% for message in messages %}<|{{ message['role'] }}|>\n"
    "{{ say(message, '<|begin_of_image|><|image|><|end_of_image|>') }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)

LLAMA = (
    "{{ bos_token }}{% for message in messages %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)

QWEN2 = QWEN_VL

QWEN3 = (
    PARTS + _TOOLS + "{% for message in messages %}"
    "{% if message['role'] == 'user' %}<|im_start|>user\n{{ message['content'] }}<|im_end|>\n"
    "{% elif message['role'] == 'tool' %}<|im_start|>user\n<tool_response>\n"
    "{{ message['content'] }}\n</tool_response><|im_end|>\n"
    "{% elif message['role'] == 'assistant' %}"
    "{% set content = message['content'] %}{% set thought = '' %}"
    "{% if message.reasoning_content is string %}{% set thought = message.reasoning_content %}"
    "{% elif '</think>' in content %}"
    "{% set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1] %}"
    "{% set thought = thought.lstrip('\n') %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "<|im_start|>assistant\n"
    "{% if loop.last and thought %}<think>\n{{ thought.strip('\n') }}\n</think>\n\n{% endif %}"
    "{{ content }}" + _CALLS + "<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% endif %}{% endif %}"
)

MISTRAL = (
    "{{ bos_token }}"
    "{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + '\n\n' %}"
    "{% set turns = messages[1:] %}{% else %}{% set first = '' %}{% set turns = messages %}"
    "{% endif %}{% for message in turns %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + (first if loop.first else '') + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] | trim + eos_token }}{% endif %}{% endfor %}"
)

GEMMA2 = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)

PHI3 = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)

GLM4 = (
    "[gMASK]<sop>{% for message in messages %}<|{{ message['role'] }}|>\n"
    "{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)

GPT_OSS = (
    "<|start|>system<|message|>You are a model.\n"
    "{% if reasoning_effort is not defined %}{% set reasoning_effort = 'medium' %}{% endif %}"
    "{{ 'Reasoning: ' + reasoning_effort + '\n' }}"
    "# Valid channels: analysis, commentary, final.<|end|>"
    "{% if messages[0]['role'] == 'system' or tools %}<|start|>developer<|message|>"
    "{% if messages[0]['role'] == 'system' %}# Instructions\n\n{{ messages[0]['content'] }}"
    "{% endif %}{% if tools %}# Tools\n\nnamespace functions {\n{% for tool in tools %}"
    "{{ '// ' + tool.function.description + '\ntype ' + tool.function.name + ' = (_: {\n' }}"
    "{% for name, spec in tool.function.parameters.properties.items() %}"
    "{% if spec.description %}{{ '// ' + spec.description + '\n' }}{% endif %}"
    "{{ name }}{% if name not in (tool.function.parameters.required or []) %}?{% endif %}: "
    "{% if spec.type == 'string' %}string{% else %}any{% endif %},\n{% endfor %}"
    "{{ '}) => any;\n' }}{% endfor %}}{% endif %}<|end|>{% endif %}"
    "{% set called = namespace(name=none) %}{% for message in messages %}"
    "{% if message['role'] == 'user' %}<|start|>user<|message|>{{ message['content'] }}<|end|>"
    "{% elif message['role'] == 'tool' %}"
    "{% if called.name is none %}{{ raise_exception('No call has this result.') }}{% endif %}"
    "<|start|>functions.{{ called.name }} to=assistant<|channel|>commentary<|message|>"
    "{{ message['content'] | tojson }}<|end|>"
    "{% elif message['role'] == 'assistant' and message['tool_calls'] %}"
    "{% set ahead = namespace(says=false) %}{% for later in messages[loop.index:] %}"
    "{% if later['role'] == 'assistant' and not later['tool_calls'] %}"
    "{% set ahead.says = true %}{% endif %}{% endfor %}"
    "{% if message['content'] and message['thinking'] %}"
    "{{ raise_exception('A turn that calls cannot both think and speak.') }}{% endif %}"
    "{% set thought = message['content'] or message['thinking'] %}"
    "{% if thought and not ahead.says %}"
    "<|start|>assistant<|channel|>analysis<|message|>{{ thought }}<|end|>{% endif %}"
    "{% set called.name = message['tool_calls'][0]['function']['name'] %}"
    "<|start|>assistant to=functions.{{ called.name }}<|channel|>commentary json<|message|>"
    "{{ message['tool_calls'][0]['function']['arguments'] | tojson }}<|call|>"
    "{% elif message['role'] == 'assistant' %}"
    "{% set is_last = loop.last and not add_generation_prompt %}"
    "{% if message['thinking'] and is_last %}"
    "<|start|>assistant<|channel|>analysis<|message|>{{ message['thinking'] }}<|end|>{% endif %}"
    "<|start|>assistant<|channel|>final<|message|>"
    "{{ message['content'] }}{{ '<|return|>' if is_last else '<|end|>' }}"
    "{% set called.name = none %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)

LLAMA4 = (
    PARTS + "{{ bos_token }}{% for message in messages %}"
    "<|header_start|>{{ message['role'] }}<|header_end|>\n\n"
    "{{ say(message, '<|image|>') }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|header_start|>assistant<|header_end|>\n\n{% endif %}"
)
MUSE = LLAMA4.replace("<|image|>", "<|patch|>")

_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ say(message, IMAGE) }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LFM2 = PARTS + "{{ bos_token }}" + _CHATML.replace("IMAGE", "'<image>'")
MOLMO2 = PARTS + _CHATML.replace("IMAGE", "'<|image|>'")
CHATML = PARTS + _CHATML  # IMAGE is to be replaced

COHERE2 = (
    PARTS + "{{ bos_token }}{% for message in messages %}<|START_OF_TURN_TOKEN|>"
    "{% if message['role'] == 'assistant' %}<|CHATBOT_TOKEN|>"
    "{% else %}<|{{ message['role'].upper() }}_TOKEN|>{% endif %}"
    "{{ say(message, '<|IMG_PATCH|>') }}<|END_OF_TURN_TOKEN|>{% endfor %}"
    "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}"
)

GEMMA4 = (
    PARTS + "{{ bos_token }}{% for message in messages %}"
    "<|turn>{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{{ say(message, '<|image|>') }}<turn|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)

KIMI = (
    PARTS + "{% for message in messages %}<|im_{{ message['role'] }}|>{{ message['role'] }}"
    "<|im_middle|>"
    "{{ say(message, '<|media_begin|>image<|media_content|><|media_pad|><|media_end|>\n') }}"
    "<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"
)

OMNI = QWEN_VL.replace(
    "<|vision_start|><|image_pad|><|vision_end|>", "<|vision_bos|><|IMAGE|><|vision_eos|>"
)

PHI4 = (
    PARTS + "{% for message in messages %}<|{{ message['role'] }}|>"
    "{{ say(message, '<|endoftext10|>') }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

JANUS = (
    PARTS + "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ say(message, '') + '\n\n' }}"
    "{% else %}<|{{ message['role'] | capitalize }}|>: "
    "{{ say(message, '<image_placeholder>\n') }}"
    "{{ eos_token if message['role'] == 'assistant' else '\n\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|Assistant|>:{% endif %}"
)

IDEFICS2 = _IDEFICS

PADDLEOCR = (
    PARTS + "<|begin_of_sentence|>{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}Assistant:\n{% else %}User: {% endif %}"
    "{{ say(message, '<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>') }}\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:\n{% endif %}"
)

EXAONE = (
    PARTS + "{% for message in messages %}[|{{ message['role'] }}|]"
    "{{ say(message, '<vision><|image_pad|></vision>\n') }}[|endofturn|]\n{% endfor %}"
    "{% if add_generation_prompt %}[|assistant|]{% endif %}"
)
