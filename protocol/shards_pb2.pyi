from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class FetchRequest(_message.Message):
    __slots__ = ["chunks", "epoch", "job"]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    chunks: bytes
    epoch: int
    job: int
    def __init__(self, job: _Optional[int] = ..., epoch: _Optional[int] = ..., chunks: _Optional[bytes] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class Shard(_message.Message):
    __slots__ = ["chunks", "epoch", "headers", "job", "ledger", "levels", "parameters", "state"]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    chunks: bytes
    epoch: int
    headers: bytes
    job: int
    ledger: bytes
    levels: bytes
    parameters: bytes
    state: bytes
    def __init__(self, job: _Optional[int] = ..., epoch: _Optional[int] = ..., chunks: _Optional[bytes] = ..., levels: _Optional[bytes] = ..., headers: _Optional[bytes] = ..., parameters: _Optional[bytes] = ..., state: _Optional[bytes] = ..., ledger: _Optional[bytes] = ...) -> None: ...
