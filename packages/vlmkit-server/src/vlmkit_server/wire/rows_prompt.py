"""Rows of the field table: prompts, vectors, and fields inside messages."""

from vlmkit_server.wire.row import Row

_OPENAI = "OpenAI"
_ALL = "OpenAI, vLLM, SGLang, llama.cpp, Mistral, LiteLLM, Ollama"
_VLLM = "vLLM"
_CHAT = "OpenAI, LiteLLM"
_LLAMA = "llama.cpp"
_OFF = (False,)
_TEXT = "write it into messages"
_INFILL = "send the whole text to /v1/completions"
_IMAGES = "send image parts in messages"
_TEMPLATE = "the model's own template writes prompts"
_RANKED = "send it to /v1/rerank"
_SCORED = "send it to /v1/score"
_LENGTH = "shorten the prompt, or send truncation to /v1/responses"

_KEPT_WHOLE: tuple[object, ...] = (
    {"edits": []},
    {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
)


def _prompt(name: str, origins: str, reason: str = "", neutral: tuple[object, ...] = ()) -> Row:
    return Row(name, origins, "implemented", reason, neutral, "prompt")


def _unknown(name: str, origins: str, reason: str, neutral: tuple[object, ...] = ()) -> Row:
    return Row(name, origins, "rejected", reason, neutral, "prompt")


PROMPT_ROWS = (
    _prompt("messages", _ALL + ", Anthropic", "send input or prompt"),
    _prompt("prompt", "OpenAI, vLLM, SGLang, llama.cpp, Ollama", "send messages or input", ("",)),
    _prompt("input", _OPENAI, "send messages or prompt", ("",)),
    _prompt("instructions", _OPENAI, "send a message of the role system", ("",)),
    _prompt("system", "Anthropic, Ollama", "send a message of the role system", ("",)),
    _unknown("suffix", "OpenAI, Mistral, Ollama", _INFILL, ("",)),
    _prompt("token_ids", _VLLM, "send prompt to /v1/completions"),
    _prompt("tokens", "vLLM, llama.cpp", "send prompt to /v1/completions"),
    _prompt("sampling_params", "vLLM, SGLang", "send each parameter as a field of the body"),
    _prompt("features", _VLLM, _IMAGES),
    _prompt("images", "Ollama", _IMAGES),
    _prompt("content", _LLAMA, "send messages or prompt", ("",)),
    _prompt("add_special", _LLAMA, "send add_special_tokens", _OFF),
    _prompt("with_pieces", _LLAMA, "send return_token_strs", _OFF),
    _prompt("image", _OPENAI, _IMAGES),
    _prompt("previous_response_id", _OPENAI, "send messages"),
    _prompt("add_generation_prompt", _VLLM, neutral=(True,)),
    _prompt("continue_final_message", "vLLM, SGLang, llama.cpp", neutral=_OFF),
    _prompt("chat_template_kwargs", "vLLM, SGLang, llama.cpp"),
    _prompt("add_special_tokens", _VLLM, "the template writes special tokens", _OFF),
    _prompt("mm_processor_kwargs", _VLLM),
    _prompt("max_image_tokens", "vlmkit"),
    _prompt("light", "vlmkit", "send it to a path with /render", _OFF),
    _prompt("return_token_strs", _VLLM, "send it to /tokenize", _OFF),
    _unknown("conversation", _OPENAI, "send previous_response_id"),
    _unknown("context_management", "OpenAI, Anthropic", _LENGTH, _KEPT_WHOLE),
    _unknown("compaction", "Anthropic", _LENGTH),
    _unknown("thread", "Anthropic", "send all messages"),
    _unknown("personality", _OPENAI, "send instructions"),
    _unknown("previous_response", _VLLM, "send previous_response_id"),
    _unknown("previous_input_messages", _VLLM, "send previous_response_id"),
    _unknown("chat_template", _VLLM, _TEMPLATE),
    _unknown("template", "Ollama", _TEMPLATE, ("",)),
    _unknown("generation_prompt", _LLAMA, _TEMPLATE, ("",)),
    _unknown("chat_format", _LLAMA, _TEMPLATE),
    _unknown("chat_parser", _LLAMA, _TEMPLATE, ("",)),
    _unknown("raw", "Ollama", "send prompt to /v1/completions", _OFF),
    _unknown("context", "Ollama", "send messages"),
    _unknown("session_params", "SGLang", "send messages"),
    _prompt("documents", "vLLM, Jina, Cohere", _TEXT),
    _prompt("query", "Jina, Cohere, vLLM", _RANKED),
    _prompt("text_1", _VLLM, _SCORED),
    _prompt("text_2", _VLLM, _SCORED),
    _prompt("queries", _VLLM, _SCORED),
    _prompt("items", _VLLM, _SCORED),
    _prompt("data_1", _VLLM, _SCORED),
    _prompt("data_2", _VLLM, _SCORED),
    _prompt("instruction", "vLLM, Qwen", _TEXT, ("",)),
    _prompt("score_method", "vlmkit", _SCORED),
    Row("top_n", "Jina, Cohere, vLLM", "implemented", _RANKED, (0,), elsewhere="no effect"),
    Row("return_documents", "Jina, Cohere", "implemented", _RANKED, elsewhere="no effect"),
    _unknown("task", "SGLang", _TEXT),
    _unknown("safe_prompt", "Mistral", _TEXT, _OFF),
    _unknown("prompt_mode", "Mistral", "send reasoning_effort"),
    _unknown("prompt_id", "LiteLLM", _TEXT),
    _unknown("prompt_variables", "LiteLLM", _TEXT),
    _unknown("roles", "LiteLLM", _TEMPLATE),
    _unknown("bos_token", "LiteLLM", _TEMPLATE),
    _unknown("eos_token", "LiteLLM", _TEMPLATE),
    _unknown("prompt_embeds", _VLLM, "send prompt"),
    _unknown("input_embeds", "SGLang", "send prompt"),
    _unknown("input_ids", "SGLang", "send prompt to /v1/completions"),
    _unknown("input_prefix", _LLAMA, _INFILL, ("",)),
    _unknown("input_suffix", _LLAMA, _INFILL, ("",)),
    _unknown("input_extra", _LLAMA, _INFILL),
    _unknown("transforms", "OpenRouter", _LENGTH),
    _unknown("truncate_prompt_tokens", _VLLM, _LENGTH, (-1,)),
    _unknown("truncate", "Ollama, TGI", _LENGTH, (True, False, -1)),
    Row("truncation_side", _VLLM, "no effect", "only with truncate_prompt_tokens"),
    _unknown("image_data", "llama.cpp, SGLang", _IMAGES),
    _unknown("images_config", "SGLang", "send image_url.detail or max_image_tokens"),
    _unknown("max_dynamic_patch", "SGLang", "send image_url.detail or max_image_tokens"),
    _unknown("min_dynamic_patch", "SGLang", "send image_url.detail or max_image_tokens"),
    _unknown("media_io_kwargs", _VLLM, "send mm_processor_kwargs"),
    _unknown("document_image_limit", "Mistral", "send pages with a file"),
    _unknown("document_page_limit", "Mistral", "send pages with a file"),
    Row("use_audio_in_video", "SGLang", "no effect", "no videos are taken", _OFF),
    Row("num_tokens", "vlmkit", "no effect", "a number that was rendered"),
    Row("max_model_len", "vLLM", "no effect", "a number that was rendered"),
)


def _vector(name: str, origins: str, reason: str, neutral: tuple[object, ...] = ()) -> Row:
    return Row(name, origins, "rejected", reason, neutral, "vector")


VECTOR_ROWS = (
    Row("dimensions", _OPENAI, "implemented", about="vector"),
    Row("encoding_format", _OPENAI, "implemented", about="vector"),
    _vector("embed_dtype", _VLLM, "send encoding_format", ("float32",)),
    _vector("endianness", _VLLM, "vectors are little-endian", ("native", "little")),
    Row("normalize", "vLLM, TGI", "implemented", "scale the vectors", (True,), "vector"),
    Row("embd_normalize", _LLAMA, "implemented", "scale the vectors", (2,), "vector"),
    _vector("input_type", "Cohere, LiteLLM", "write the instruction into input"),
    _vector("prompt_name", "TGI", "write the instruction into input"),
    _vector("output_dtype", "Mistral", "send encoding_format", ("float",)),
    _vector("output_dimension", "Mistral", "send dimensions"),
)


def _idle(name: str, origins: str, reason: str, neutral: tuple[object, ...] = ()) -> Row:
    return Row(name, origins, "no effect", reason, neutral)


def _inner(name: str, origins: str, reason: str = "", neutral: tuple[object, ...] = ()) -> Row:
    return Row(name, origins, "rejected", reason, neutral, "prompt")


_CACHED = "caches are kept by content"
INNER_ROWS = (
    _inner("messages.audio", _OPENAI, "send texts"),
    _inner("messages.function_call", _OPENAI, "send tool_calls"),
    _inner("messages.refusal", _OPENAI, "send content"),
    _prompt("messages.partial", "DashScope, Moonshot", "it belongs to the assistant", _OFF),
    _prompt("messages.prefix", "Mistral, DeepSeek", "it belongs to the assistant", _OFF),
    _inner("messages.content.image_url.max_dynamic_patch", "SGLang", "send detail"),
    _inner("messages.content.image_url.min_dynamic_patch", "SGLang", "send detail"),
    _idle("messages.content.image_url.detail", _OPENAI, "the model shows images in one size"),
    _idle("messages.content.uuid", _VLLM, _CACHED + "; a file_id of /v1/files names an image"),
    _idle("messages.name", _OPENAI, "templates write no names"),
    _idle("messages.annotations", _OPENAI, "part of an earlier answer"),
    _idle("messages.provider_specific_fields", "LiteLLM", "part of an earlier answer"),
    _prompt("messages.reasoning", "vLLM, OpenRouter", "it belongs to the assistant"),
    _prompt("messages.images", "Ollama", "they belong to the user"),
    _idle("messages.thinking_blocks", "LiteLLM", "send reasoning_content"),
    _idle("messages.tool_calls.index", "OpenAI, LangChain", "the order of the list counts"),
    _idle("messages.cache_control", "Anthropic, LiteLLM", _CACHED),
    _idle("messages.content.cache_control", "Anthropic, LiteLLM", _CACHED),
    _idle("messages.content.content.cache_control", "Anthropic", _CACHED),
    _idle("messages.content.is_error", "Anthropic", "the text says so"),
    _idle("messages.content.data", "Anthropic", "of redacted_thinking: no one here can read it"),
    _idle("system.cache_control", "Anthropic", _CACHED),
    _idle("tools.cache_control", "Anthropic", _CACHED),
    _idle("input.content.annotations", _OPENAI, "part of an earlier answer"),
    _idle("input.content.detail", _OPENAI, "the model shows images in one size"),
    _idle("input.content.logprobs", _OPENAI, "part of an earlier answer"),
    _idle("input.encrypted_content", _OPENAI, "no one here can read it"),
    _idle("input.phase", _OPENAI, "part of an earlier answer"),
    _idle("reasoning.summary", _OPENAI, "reasoning is sent whole", ("auto",)),
    _idle("text.verbosity", _OPENAI, "no model here can be told how much to say", ("medium",)),
    Row("thinking.budget_tokens", "Anthropic", "implemented", elsewhere="no effect"),
    _idle("thinking.display", "Anthropic", "reasoning is sent whole"),
)
