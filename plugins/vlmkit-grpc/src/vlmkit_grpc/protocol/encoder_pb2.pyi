from vlmkit_grpc.protocol import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeEncoderRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeEncoderReply(_message.Message):
    __slots__ = ("protocol", "version", "model", "model_digest", "identity", "media_kinds", "precision")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    MEDIA_KINDS_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    protocol: str
    version: str
    model: str
    model_digest: str
    identity: str
    media_kinds: _containers.RepeatedScalarFieldContainer[str]
    precision: str
    def __init__(self, protocol: _Optional[str] = ..., version: _Optional[str] = ..., model: _Optional[str] = ..., model_digest: _Optional[str] = ..., identity: _Optional[str] = ..., media_kinds: _Optional[_Iterable[str]] = ..., precision: _Optional[str] = ...) -> None: ...
