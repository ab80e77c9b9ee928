"""Routes of other servers that this one does not have, and what to use instead.

A client that was written for another server learns from the 404 which route it missed. The message
contains paths of this table alone, never text that the client sent.
"""

from collections.abc import Mapping
from types import MappingProxyType

_RANKING = "send query and documents to /v1/rerank"
_POOLING = "send the texts to /v1/embeddings"
_ADAPTERS = "the operator serves an adapter as a model of its own"
_AUDIO = "no served model hears or speaks"
_IMAGES = "no served model draws"
_OLLAMA = "send messages to /v1/chat/completions"
_FIXED = "the operator decides which models are served"

UNSERVED: Mapping[str, str] = MappingProxyType(
    {
        "/completion": "send prompt to /v1/completions",
        "/infill": "send the whole text to /v1/completions",
        "/embedding": _POOLING,
        "/pooling": _POOLING,
        "/v2/embed": _POOLING,
        "/classify": _POOLING,
        "/reranking": _RANKING,
        "/v1/reranking": _RANKING,
        "/lora-adapters": _ADAPTERS,
        "/v1/load_lora_adapter": _ADAPTERS,
        "/v1/unload_lora_adapter": _ADAPTERS,
        "/slots/": "slots cannot be saved or erased; prefixes are cached by content",
        "/v1/chat/completions/batch": "send each conversation to /v1/chat/completions, or a file "
        "of them to /v1/batches",
        "/predict": "send each instance to /v1/chat/completions",
        "/generate": "send prompt to /v1/completions",
        "/v1/audio/speech": _AUDIO,
        "/v1/audio/transcriptions": _AUDIO,
        "/v1/audio/translations": _AUDIO,
        "/v1/images/edits": _IMAGES,
        "/v1/images/generations": _IMAGES,
        "/v1/moderations": "no text is moderated here",
        "/api/chat": _OLLAMA,
        "/api/generate": _OLLAMA,
        "/api/tags": "GET /v1/models lists the models",
        "/api/blobs/": _FIXED,
        "/api/copy": _FIXED,
        "/api/create": _FIXED,
        "/api/delete": _FIXED,
        "/api/pull": _FIXED,
        "/api/push": _FIXED,
    }
)
"""What to use instead, by path; a path that ends with a slash matches as a prefix."""


def unserved(path: str) -> str | None:
    """Return a hint for a route of another server; None for other paths."""
    known = path
    if path not in UNSERVED:
        known = next((k for k in UNSERVED if k.endswith("/") and path.startswith(k)), "")
    if not known:
        return None
    return f"{known.rstrip('/')} is not served here ({UNSERVED[known]})"
