from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Shard(_message.Message):
    __slots__ = ("job", "epoch", "chunks", "levels", "headers", "parameters", "state", "ledger", "replica")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    job: int
    epoch: int
    chunks: bytes
    levels: bytes
    headers: bytes
    parameters: bytes
    state: bytes
    ledger: bytes
    replica: bool
    def __init__(self, job: _Optional[int] = ..., epoch: _Optional[int] = ..., chunks: _Optional[bytes] = ..., levels: _Optional[bytes] = ..., headers: _Optional[bytes] = ..., parameters: _Optional[bytes] = ..., state: _Optional[bytes] = ..., ledger: _Optional[bytes] = ..., replica: bool = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("job", "epoch", "chunks", "stale", "rank", "ticket", "attempt")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    job: int
    epoch: int
    chunks: bytes
    stale: bool
    rank: int
    ticket: int
    attempt: int
    def __init__(self, job: _Optional[int] = ..., epoch: _Optional[int] = ..., chunks: _Optional[bytes] = ..., stale: bool = ..., rank: _Optional[int] = ..., ticket: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...
