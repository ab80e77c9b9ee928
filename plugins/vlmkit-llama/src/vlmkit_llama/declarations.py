"""The C types of llama.cpp that the engine uses, their default values, and tested builds.

Source: ``include/llama.h`` and ``tools/mtmd/mtmd.h`` of the builds in :data:`TESTED`. Calls
nothing.
"""

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_bool, c_float, c_int8, c_int32, c_size_t, c_uint32, c_void_p
from typing import Any

TESTED = ("2026.10.11549",)
"""Versions of the distribution xllamacpp with which the tests of this plugin run."""

SPARE_BYTES = 512
"""Room behind a structure of parameters, in case that a library has further fields at its end."""

NO_FLASH_ATTENTION = 0  # LLAMA_FLASH_ATTN_TYPE_DISABLED
NO_POOLING = 0  # LLAMA_POOLING_TYPE_NONE
ROPE_WITH_AXES = frozenset({8, 40})  # LLAMA_ROPE_TYPE_MROPE, LLAMA_ROPE_TYPE_IMROPE
IMAGE_CHUNK = 1  # MTMD_INPUT_CHUNK_TYPE_IMAGE
TYPES: Mapping[str, int] = {"f32": 0, "f16": 1}
"""Types of keys and values, by ``enum ggml_type``."""

LOG_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, c_void_p)


class ModelParams(ctypes.Structure):
    """``struct llama_model_params``."""

    _fields_ = (
        ("devices", c_void_p),
        ("tensor_buft_overrides", c_void_p),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int32),
        ("load_mode", c_int32),
        ("lazy_mode", c_int32),
        ("main_gpu", c_int32),
        ("tensor_split", c_void_p),
        ("progress_callback", c_void_p),
        ("progress_callback_user_data", c_void_p),
        ("kv_overrides", c_void_p),
        ("vocab_only", c_bool),
        ("check_tensors", c_bool),
        ("use_extra_bufts", c_bool),
        ("no_host", c_bool),
        ("no_alloc", c_bool),
        ("load_mtp", c_bool),
    )


class ContextParams(ctypes.Structure):
    """``struct llama_context_params``."""

    _fields_ = (
        ("n_ctx", c_uint32),
        ("n_batch", c_uint32),
        ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32),
        ("n_rs_seq", c_uint32),
        ("n_outputs_max", c_uint32),
        ("n_outputs_max_per_seq", c_uint32),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("ctx_type", c_int32),
        ("rope_scaling_type", c_int32),
        ("pooling_type", c_int32),
        ("attention_type", c_int32),
        ("flash_attn_type", c_int32),
        ("rope_freq_base", c_float),
        ("rope_freq_scale", c_float),
        ("yarn_ext_factor", c_float),
        ("yarn_attn_factor", c_float),
        ("yarn_beta_fast", c_float),
        ("yarn_beta_slow", c_float),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        ("cb_eval", c_void_p),
        ("cb_eval_user_data", c_void_p),
        ("type_k", c_int32),
        ("type_v", c_int32),
        ("moe_cache_size", c_size_t),
        ("abort_callback", c_void_p),
        ("abort_callback_data", c_void_p),
        ("embeddings", c_bool),
        ("offload_kqv", c_bool),
        ("no_perf", c_bool),
        ("op_offload", c_bool),
        ("swa_full", c_bool),
        ("kv_unified", c_bool),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", c_void_p),
    )


class Batch(ctypes.Structure):
    """``struct llama_batch``."""

    _fields_ = (
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    )


class MediaParams(ctypes.Structure):
    """``struct mtmd_context_params``."""

    _fields_ = (
        ("use_gpu", c_bool),
        ("device", c_void_p),
        ("print_timings", c_bool),
        ("n_threads", c_int32),
        ("image_marker", ctypes.c_char_p),
        ("media_marker", ctypes.c_char_p),
        ("flash_attn_type", c_int32),
        ("warmup", c_bool),
        ("image_min_tokens", c_int32),
        ("image_max_tokens", c_int32),
        ("cb_eval", c_void_p),
        ("cb_eval_user_data", c_void_p),
        ("batch_max_tokens", c_int32),
        ("progress_callback", c_void_p),
        ("progress_callback_user_data", c_void_p),
    )


class MediaText(ctypes.Structure):
    """``struct mtmd_input_text``."""

    _fields_ = (
        ("text", ctypes.c_char_p),
        ("text_len", c_size_t),
        ("add_special", c_bool),
        ("parse_special", c_bool),
    )


class MediaPosition(ctypes.Structure):
    """``struct mtmd_decoder_pos``."""

    _fields_ = (("t", c_uint32), ("x", c_uint32), ("y", c_uint32), ("z", c_uint32))


MODEL_DEFAULTS: Mapping[str, Any] = {
    "n_gpu_layers": -1,
    "split_mode": 1,
    "load_mode": -1,
    "lazy_mode": 1,
    "use_extra_bufts": True,
}
CONTEXT_DEFAULTS: Mapping[str, Any] = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_outputs_max_per_seq": 1,
    "n_threads": 4,
    "n_threads_batch": 4,
    "rope_scaling_type": -1,
    "pooling_type": -1,
    "attention_type": -1,
    "flash_attn_type": -1,
    "yarn_ext_factor": -1.0,
    "yarn_attn_factor": -1.0,
    "yarn_beta_fast": -1.0,
    "yarn_beta_slow": -1.0,
    "defrag_thold": -1.0,
    "type_k": 1,
    "type_v": 1,
    "offload_kqv": True,
    "no_perf": True,
    "op_offload": True,
    "swa_full": True,
}
MEDIA_DEFAULTS: Mapping[str, Any] = {
    "use_gpu": True,
    "print_timings": True,
    "n_threads": 4,
    "media_marker": b"<__media__>",
    "flash_attn_type": -1,
    "warmup": True,
    "image_min_tokens": -1,
    "image_max_tokens": -1,
    "batch_max_tokens": 1024,
}
"""Defaults that are not zero. All other fields are zero, false or null."""


def with_spare(kind: type[ctypes.Structure]) -> type[ctypes.Structure]:
    """Return the type of a structure with room behind it; ``params`` is the structure.

    A library with more fields at the end of a structure writes and reads them there.
    """
    fields = (("params", kind), ("spare", ctypes.c_uint8 * SPARE_BYTES))
    return type(f"{kind.__name__}WithSpare", (ctypes.Structure,), {"_fields_": fields})


ModelParamsWithSpare: Any = with_spare(ModelParams)
ContextParamsWithSpare: Any = with_spare(ContextParams)
MediaParamsWithSpare: Any = with_spare(MediaParams)

Signature = tuple[Any, tuple[Any, ...]]
FUNCTIONS: Mapping[str, Signature] = {
    "llama_backend_init": (None, ()),
    "llama_log_set": (None, (LOG_CALLBACK, c_void_p)),
    "llama_print_system_info": (ctypes.c_char_p, ()),
    "llama_model_default_params": (ModelParamsWithSpare, ()),
    "llama_context_default_params": (ContextParamsWithSpare, ()),
    "llama_model_load_from_file": (c_void_p, (ctypes.c_char_p, ModelParamsWithSpare)),
    "llama_model_free": (None, (c_void_p,)),
    "llama_model_get_vocab": (c_void_p, (c_void_p,)),
    "llama_model_has_encoder": (c_bool, (c_void_p,)),
    "llama_model_is_recurrent": (c_bool, (c_void_p,)),
    "llama_model_is_hybrid": (c_bool, (c_void_p,)),
    "llama_model_is_diffusion": (c_bool, (c_void_p,)),
    "llama_model_rope_type": (c_int32, (c_void_p,)),
    "llama_model_n_embd_inp": (c_int32, (c_void_p,)),
    "llama_model_n_embd_out": (c_int32, (c_void_p,)),
    "llama_model_n_swa": (c_int32, (c_void_p,)),
    "llama_model_desc": (c_int32, (c_void_p, ctypes.c_char_p, c_size_t)),
    "llama_vocab_n_tokens": (c_int32, (c_void_p,)),
    "llama_init_from_model": (c_void_p, (c_void_p, ContextParamsWithSpare)),
    "llama_free": (None, (c_void_p,)),
    "llama_n_ctx": (c_uint32, (c_void_p,)),
    "llama_n_batch": (c_uint32, (c_void_p,)),
    "llama_n_seq_max": (c_uint32, (c_void_p,)),
    "llama_get_memory": (c_void_p, (c_void_p,)),
    "llama_memory_seq_cp": (None, (c_void_p, c_int32, c_int32, c_int32, c_int32)),
    "llama_memory_seq_rm": (c_bool, (c_void_p, c_int32, c_int32, c_int32)),
    "llama_memory_seq_pos_min": (c_int32, (c_void_p, c_int32)),
    "llama_memory_seq_pos_max": (c_int32, (c_void_p, c_int32)),
    "llama_state_seq_get_size": (c_size_t, (c_void_p, c_int32)),
    "llama_state_seq_get_data": (c_size_t, (c_void_p, c_void_p, c_size_t, c_int32)),
    "llama_state_seq_set_data": (c_size_t, (c_void_p, c_void_p, c_size_t, c_int32)),
    "llama_batch_init": (Batch, (c_int32, c_int32, c_int32)),
    "llama_batch_free": (None, (Batch,)),
    "llama_decode": (c_int32, (c_void_p, Batch)),
    "llama_get_logits": (POINTER(c_float), (c_void_p,)),
    "llama_set_causal_attn": (None, (c_void_p, c_bool)),
    "llama_set_embeddings": (None, (c_void_p, c_bool)),
    "llama_get_embeddings": (POINTER(c_float), (c_void_p,)),
}
"""Result and arguments of each function that the engine calls."""

MEDIA_FUNCTIONS: Mapping[str, Signature] = {
    "mtmd_log_set": (None, (LOG_CALLBACK, c_void_p)),
    "mtmd_context_params_default": (MediaParamsWithSpare, ()),
    "mtmd_init_from_file": (c_void_p, (ctypes.c_char_p, c_void_p, MediaParamsWithSpare)),
    "mtmd_free": (None, (c_void_p,)),
    "mtmd_support_vision": (c_bool, (c_void_p,)),
    "mtmd_decode_use_non_causal": (c_bool, (c_void_p, c_void_p)),
    "mtmd_decode_use_mrope": (c_bool, (c_void_p,)),
    "mtmd_bitmap_init": (c_void_p, (c_uint32, c_uint32, c_void_p)),
    "mtmd_bitmap_free": (None, (c_void_p,)),
    "mtmd_input_chunks_init": (c_void_p, ()),
    "mtmd_input_chunks_size": (c_size_t, (c_void_p,)),
    "mtmd_input_chunks_get": (c_void_p, (c_void_p, c_size_t)),
    "mtmd_input_chunks_free": (None, (c_void_p,)),
    "mtmd_input_chunk_get_type": (c_int32, (c_void_p,)),
    "mtmd_input_chunk_get_tokens_text": (POINTER(c_int32), (c_void_p, POINTER(c_size_t))),
    "mtmd_input_chunk_get_tokens_image": (c_void_p, (c_void_p,)),
    "mtmd_input_chunk_get_n_tokens": (c_size_t, (c_void_p,)),
    "mtmd_input_chunk_get_n_pos": (c_int32, (c_void_p,)),
    "mtmd_image_tokens_get_decoder_pos": (MediaPosition, (c_void_p, c_int32, c_size_t)),
    "mtmd_tokenize": (
        c_int32,
        (c_void_p, c_void_p, POINTER(MediaText), POINTER(c_void_p), c_size_t),
    ),
    "mtmd_encode_chunk": (c_int32, (c_void_p, c_void_p)),
    "mtmd_get_output_embd": (POINTER(c_float), (c_void_p,)),
}
"""The same for the functions of images, which a build may have in a library of their own."""
