from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Part(_message.Message):
    __slots__ = ("content",)
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    def __init__(self, content: _Optional[bytes] = ...) -> None: ...

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
