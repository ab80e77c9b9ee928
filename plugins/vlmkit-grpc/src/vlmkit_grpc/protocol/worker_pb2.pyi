from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Part(_message.Message):
    __slots__ = ("content", "prompt")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    prompt: Prompt
    def __init__(self, content: _Optional[bytes] = ..., prompt: _Optional[_Union[Prompt, _Mapping]] = ...) -> None: ...

class Prompt(_message.Message):
    __slots__ = ("parts",)
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[PromptPart]
    def __init__(self, parts: _Optional[_Iterable[_Union[PromptPart, _Mapping]]] = ...) -> None: ...

class PromptPart(_message.Message):
    __slots__ = ("key", "num_tokens", "image")
    KEY_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    num_tokens: int
    image: bytes
    def __init__(self, key: _Optional[bytes] = ..., num_tokens: _Optional[int] = ..., image: _Optional[bytes] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("protocol", "version", "model", "model_digest", "vocabulary_digest", "precision")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    protocol: str
    version: str
    model: str
    model_digest: str
    vocabulary_digest: str
    precision: str
    def __init__(self, protocol: _Optional[str] = ..., version: _Optional[str] = ..., model: _Optional[str] = ..., model_digest: _Optional[str] = ..., vocabulary_digest: _Optional[str] = ..., precision: _Optional[str] = ...) -> None: ...

class FactsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("with_cache",)
    WITH_CACHE_FIELD_NUMBER: _ClassVar[int]
    with_cache: bool
    def __init__(self, with_cache: _Optional[bool] = ...) -> None: ...

class WatchReply(_message.Message):
    __slots__ = ("number", "load", "cache")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    number: int
    load: Load
    cache: CacheChange
    def __init__(self, number: _Optional[int] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., cache: _Optional[_Union[CacheChange, _Mapping]] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("waiting_tokens", "num_running", "num_waiting", "num_free_tokens", "is_full", "is_draining")
    WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IS_FULL_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    waiting_tokens: int
    num_running: int
    num_waiting: int
    num_free_tokens: int
    is_full: bool
    is_draining: bool
    def __init__(self, waiting_tokens: _Optional[int] = ..., num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., num_free_tokens: _Optional[int] = ..., is_full: _Optional[bool] = ..., is_draining: _Optional[bool] = ...) -> None: ...

class CacheChange(_message.Message):
    __slots__ = ("is_cleared", "removed", "stored")
    IS_CLEARED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    is_cleared: bool
    removed: _containers.RepeatedScalarFieldContainer[bytes]
    stored: _containers.RepeatedCompositeFieldContainer[CacheBlock]
    def __init__(self, is_cleared: _Optional[bool] = ..., removed: _Optional[_Iterable[bytes]] = ..., stored: _Optional[_Iterable[_Union[CacheBlock, _Mapping]]] = ...) -> None: ...

class CacheBlock(_message.Message):
    __slots__ = ("key", "parent", "token_ids", "media", "scope")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    parent: bytes
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    media: _containers.RepeatedScalarFieldContainer[bytes]
    scope: bytes
    def __init__(self, key: _Optional[bytes] = ..., parent: _Optional[bytes] = ..., token_ids: _Optional[_Iterable[int]] = ..., media: _Optional[_Iterable[bytes]] = ..., scope: _Optional[bytes] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("timeout_s",)
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    timeout_s: float
    def __init__(self, timeout_s: _Optional[float] = ...) -> None: ...

class DrainReply(_message.Message):
    __slots__ = ("is_empty",)
    IS_EMPTY_FIELD_NUMBER: _ClassVar[int]
    is_empty: bool
    def __init__(self, is_empty: _Optional[bool] = ...) -> None: ...
