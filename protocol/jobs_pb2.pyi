from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

ASYNCHRONOUS: Consistency
BOUNDED: Consistency
CORE: Tree
CORE_SERVER: Tree
DESCRIPTOR: _descriptor.FileDescriptor
NETWORK: Admission
NONE: Tree
ROLE_UNSPECIFIED: Role
SERVER: Role
SERVERS: Admission
SYNCHRONOUS: Consistency
TOR: Tree
TREE_UNSPECIFIED: Tree
TWO_LEVEL: Tree
TWO_LEVEL_SERVER: Tree
WORKER: Role

class Address(_message.Message):
    __slots__ = ["ipv4", "port"]
    IPV4_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    ipv4: int
    port: int
    def __init__(self, ipv4: _Optional[int] = ..., port: _Optional[int] = ...) -> None: ...

class Array(_message.Message):
    __slots__ = ["data", "name", "shape", "type"]
    DATA_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    type: str
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Begun(_message.Message):
    __slots__ = ["calls", "number"]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    calls: int
    number: int
    def __init__(self, number: _Optional[int] = ..., calls: _Optional[int] = ...) -> None: ...

class Boundary(_message.Message):
    __slots__ = ["number", "until"]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    number: int
    until: int
    def __init__(self, number: _Optional[int] = ..., until: _Optional[int] = ...) -> None: ...

class Broken(_message.Message):
    __slots__ = ["chunk", "reason", "seq", "stream"]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    chunk: int
    reason: str
    seq: int
    stream: int
    def __init__(self, stream: _Optional[int] = ..., seq: _Optional[int] = ..., chunk: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Budget(_message.Message):
    __slots__ = ["slots", "switch", "used"]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    slots: int
    switch: str
    used: int
    def __init__(self, switch: _Optional[str] = ..., slots: _Optional[int] = ..., used: _Optional[int] = ...) -> None: ...

class Child(_message.Message):
    __slots__ = ["address", "node", "sender", "workers"]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    address: Address
    node: int
    sender: int
    workers: int
    def __init__(self, sender: _Optional[int] = ..., address: _Optional[_Union[Address, _Mapping]] = ..., workers: _Optional[int] = ..., node: _Optional[int] = ...) -> None: ...

class ConnectServiceReply(_message.Message):
    __slots__ = ["job", "lanes", "world"]
    JOB_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    job: int
    lanes: int
    world: int
    def __init__(self, job: _Optional[int] = ..., world: _Optional[int] = ..., lanes: _Optional[int] = ...) -> None: ...

class ConnectServiceRequest(_message.Message):
    __slots__ = ["address", "nonce", "process", "rank", "role"]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    address: Address
    nonce: str
    process: int
    rank: int
    role: Role
    def __init__(self, nonce: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., rank: _Optional[int] = ..., address: _Optional[_Union[Address, _Mapping]] = ..., process: _Optional[int] = ...) -> None: ...

class CreateServiceReply(_message.Message):
    __slots__ = ["job", "nonce", "servers", "tree"]
    JOB_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    job: int
    nonce: str
    servers: _containers.RepeatedCompositeFieldContainer[Member]
    tree: Tree
    def __init__(self, nonce: _Optional[str] = ..., job: _Optional[int] = ..., tree: _Optional[_Union[Tree, str]] = ..., servers: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class CreateServiceRequest(_message.Message):
    __slots__ = ["admission", "lease", "namespace", "pipeline", "servers", "slice_bytes", "streams", "tree", "window", "workers"]
    ADMISSION_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    SLICE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    admission: Admission
    lease: float
    namespace: str
    pipeline: Pipeline
    servers: _containers.RepeatedCompositeFieldContainer[Member]
    slice_bytes: int
    streams: int
    tree: Tree
    window: int
    workers: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, namespace: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., servers: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., tree: _Optional[_Union[Tree, str]] = ..., window: _Optional[int] = ..., streams: _Optional[int] = ..., lease: _Optional[float] = ..., admission: _Optional[_Union[Admission, str]] = ..., slice_bytes: _Optional[int] = ..., pipeline: _Optional[_Union[Pipeline, _Mapping]] = ...) -> None: ...

class Donate(_message.Message):
    __slots__ = ["number", "page"]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    number: int
    page: int
    def __init__(self, number: _Optional[int] = ..., page: _Optional[int] = ...) -> None: ...

class Donated(_message.Message):
    __slots__ = ["number", "page", "unable"]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    UNABLE_FIELD_NUMBER: _ClassVar[int]
    number: int
    page: Page
    unable: str
    def __init__(self, number: _Optional[int] = ..., page: _Optional[_Union[Page, _Mapping]] = ..., unable: _Optional[str] = ...) -> None: ...

class Fetch(_message.Message):
    __slots__ = ["sources"]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    sources: _containers.RepeatedCompositeFieldContainer[Source]
    def __init__(self, sources: _Optional[_Iterable[_Union[Source, _Mapping]]] = ...) -> None: ...

class Fetched(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class GoneReply(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class GoneRequest(_message.Message):
    __slots__ = ["nonce", "rank", "reason", "role"]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    nonce: str
    rank: int
    reason: str
    role: Role
    def __init__(self, nonce: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., rank: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Halt(_message.Message):
    __slots__ = ["chunks", "lanes", "optimizer", "reason", "servers", "workers"]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    chunks: int
    lanes: int
    optimizer: Optimizer
    reason: str
    servers: _containers.RepeatedCompositeFieldContainer[Address]
    workers: int
    def __init__(self, reason: _Optional[str] = ..., servers: _Optional[_Iterable[_Union[Address, _Mapping]]] = ..., optimizer: _Optional[_Union[Optimizer, _Mapping]] = ..., chunks: _Optional[int] = ..., lanes: _Optional[int] = ..., workers: _Optional[int] = ...) -> None: ...

class Hand(_message.Message):
    __slots__ = ["wants"]
    WANTS_FIELD_NUMBER: _ClassVar[int]
    wants: _containers.RepeatedCompositeFieldContainer[Want]
    def __init__(self, wants: _Optional[_Iterable[_Union[Want, _Mapping]]] = ...) -> None: ...

class Handed(_message.Message):
    __slots__ = ["last", "results"]
    LAST_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    last: bool
    results: _containers.RepeatedCompositeFieldContainer[Result]
    def __init__(self, results: _Optional[_Iterable[_Union[Result, _Mapping]]] = ..., last: bool = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ["epoch"]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ["awaited", "awaited_key", "epoch", "nonce", "process", "rank", "role", "unanswered"]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    AWAITED_KEY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    UNANSWERED_FIELD_NUMBER: _ClassVar[int]
    awaited: int
    awaited_key: str
    epoch: int
    nonce: str
    process: int
    rank: int
    role: Role
    unanswered: float
    def __init__(self, nonce: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., rank: _Optional[int] = ..., epoch: _Optional[int] = ..., unanswered: _Optional[float] = ..., process: _Optional[int] = ..., awaited: _Optional[int] = ..., awaited_key: _Optional[str] = ...) -> None: ...

class InitServiceReply(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class InitServiceRequest(_message.Message):
    __slots__ = ["gives_state", "keys", "nonce", "optimizer", "process", "rank"]
    GIVES_STATE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    gives_state: bool
    keys: _containers.RepeatedCompositeFieldContainer[Key]
    nonce: str
    optimizer: Optimizer
    process: int
    rank: int
    def __init__(self, nonce: _Optional[str] = ..., rank: _Optional[int] = ..., keys: _Optional[_Iterable[_Union[Key, _Mapping]]] = ..., process: _Optional[int] = ..., gives_state: bool = ..., optimizer: _Optional[_Union[Optimizer, _Mapping]] = ...) -> None: ...

class Instruction(_message.Message):
    __slots__ = ["boundary", "donate", "epoch", "fetch", "halt", "hand", "plan", "restore", "take"]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    DONATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    HALT_FIELD_NUMBER: _ClassVar[int]
    HAND_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    TAKE_FIELD_NUMBER: _ClassVar[int]
    boundary: Boundary
    donate: Donate
    epoch: int
    fetch: Fetch
    halt: Halt
    hand: Hand
    plan: Plan
    restore: Restore
    take: Take
    def __init__(self, epoch: _Optional[int] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., halt: _Optional[_Union[Halt, _Mapping]] = ..., hand: _Optional[_Union[Hand, _Mapping]] = ..., take: _Optional[_Union[Take, _Mapping]] = ..., boundary: _Optional[_Union[Boundary, _Mapping]] = ..., donate: _Optional[_Union[Donate, _Mapping]] = ..., restore: _Optional[_Union[Restore, _Mapping]] = ..., fetch: _Optional[_Union[Fetch, _Mapping]] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ["connected", "epoch", "job", "namespace", "reason", "restored", "slots", "state", "tree", "window", "world"]
    class SlotsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    connected: int
    epoch: int
    job: int
    namespace: str
    reason: str
    restored: _containers.RepeatedCompositeFieldContainer[RestoredChunks]
    slots: _containers.ScalarMap[str, int]
    state: str
    tree: str
    window: int
    world: int
    def __init__(self, job: _Optional[int] = ..., namespace: _Optional[str] = ..., state: _Optional[str] = ..., epoch: _Optional[int] = ..., world: _Optional[int] = ..., connected: _Optional[int] = ..., tree: _Optional[str] = ..., slots: _Optional[_Mapping[str, int]] = ..., reason: _Optional[str] = ..., window: _Optional[int] = ..., restored: _Optional[_Iterable[_Union[RestoredChunks, _Mapping]]] = ...) -> None: ...

class Key(_message.Message):
    __slots__ = ["elements", "key", "name"]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    elements: int
    key: int
    name: str
    def __init__(self, key: _Optional[int] = ..., name: _Optional[str] = ..., elements: _Optional[int] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ["levels", "nonce", "process", "rank", "reason", "results", "role"]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    levels: bytes
    nonce: str
    process: int
    rank: int
    reason: str
    results: _containers.RepeatedCompositeFieldContainer[Result]
    role: Role
    def __init__(self, nonce: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., rank: _Optional[int] = ..., reason: _Optional[str] = ..., results: _Optional[_Iterable[_Union[Result, _Mapping]]] = ..., levels: _Optional[bytes] = ..., process: _Optional[int] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ["host", "rank"]
    HOST_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    host: str
    rank: int
    def __init__(self, host: _Optional[str] = ..., rank: _Optional[int] = ...) -> None: ...

class Optimizer(_message.Message):
    __slots__ = ["beta1", "beta2", "consistency", "epsilon", "first_step", "momentum", "name", "rate", "schedule", "spans", "staleness", "weight_decay"]
    BETA1_FIELD_NUMBER: _ClassVar[int]
    BETA2_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    MOMENTUM_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    beta1: float
    beta2: float
    consistency: Consistency
    epsilon: float
    first_step: int
    momentum: float
    name: str
    rate: float
    schedule: Schedule
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    staleness: int
    weight_decay: float
    def __init__(self, name: _Optional[str] = ..., rate: _Optional[float] = ..., momentum: _Optional[float] = ..., weight_decay: _Optional[float] = ..., beta1: _Optional[float] = ..., beta2: _Optional[float] = ..., epsilon: _Optional[float] = ..., schedule: _Optional[_Union[Schedule, _Mapping]] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., first_step: _Optional[int] = ..., consistency: _Optional[_Union[Consistency, str]] = ..., staleness: _Optional[int] = ...) -> None: ...

class Page(_message.Message):
    __slots__ = ["data", "page", "sha256", "size"]
    DATA_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    page: int
    sha256: bytes
    size: int
    def __init__(self, page: _Optional[int] = ..., size: _Optional[int] = ..., sha256: _Optional[bytes] = ..., data: _Optional[bytes] = ...) -> None: ...

class Pipeline(_message.Message):
    __slots__ = ["ablated", "kind"]
    ABLATED_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ablated: _containers.RepeatedScalarFieldContainer[str]
    kind: str
    def __init__(self, kind: _Optional[str] = ..., ablated: _Optional[_Iterable[str]] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ["callers", "chunks_per_slice", "codec", "congestion", "epoch", "job", "key_chunks", "lanes", "link_rate", "members", "met_in", "met_worker", "optimizer", "pipeline", "rank", "roots", "scheduler", "servers", "streams", "summed_at", "tree", "windows", "workers", "world"]
    class WindowsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    CALLERS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_PER_SLICE_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    CONGESTION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    KEY_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    LINK_RATE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    MET_IN_FIELD_NUMBER: _ClassVar[int]
    MET_WORKER_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ROOTS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    SUMMED_AT_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    callers: _containers.RepeatedScalarFieldContainer[int]
    chunks_per_slice: int
    codec: str
    congestion: str
    epoch: int
    job: int
    key_chunks: _containers.RepeatedScalarFieldContainer[int]
    lanes: int
    link_rate: int
    members: _containers.RepeatedScalarFieldContainer[int]
    met_in: int
    met_worker: int
    optimizer: Optimizer
    pipeline: Pipeline
    rank: int
    roots: _containers.RepeatedCompositeFieldContainer[RootStream]
    scheduler: str
    servers: _containers.RepeatedCompositeFieldContainer[Address]
    streams: _containers.RepeatedCompositeFieldContainer[Stream]
    summed_at: _containers.RepeatedScalarFieldContainer[str]
    tree: Tree
    windows: _containers.ScalarMap[int, int]
    workers: _containers.RepeatedCompositeFieldContainer[Address]
    world: int
    def __init__(self, job: _Optional[int] = ..., epoch: _Optional[int] = ..., world: _Optional[int] = ..., lanes: _Optional[int] = ..., rank: _Optional[int] = ..., streams: _Optional[_Iterable[_Union[Stream, _Mapping]]] = ..., servers: _Optional[_Iterable[_Union[Address, _Mapping]]] = ..., callers: _Optional[_Iterable[int]] = ..., workers: _Optional[_Iterable[_Union[Address, _Mapping]]] = ..., roots: _Optional[_Iterable[_Union[RootStream, _Mapping]]] = ..., chunks_per_slice: _Optional[int] = ..., link_rate: _Optional[int] = ..., windows: _Optional[_Mapping[int, int]] = ..., members: _Optional[_Iterable[int]] = ..., met_in: _Optional[int] = ..., met_worker: _Optional[int] = ..., optimizer: _Optional[_Union[Optimizer, _Mapping]] = ..., key_chunks: _Optional[_Iterable[int]] = ..., tree: _Optional[_Union[Tree, str]] = ..., summed_at: _Optional[_Iterable[str]] = ..., pipeline: _Optional[_Union[Pipeline, _Mapping]] = ..., scheduler: _Optional[str] = ..., congestion: _Optional[str] = ..., codec: _Optional[str] = ...) -> None: ...

class Reached(_message.Message):
    __slots__ = ["number"]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ["levels"]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    levels: bytes
    def __init__(self, levels: _Optional[bytes] = ...) -> None: ...

class Restore(_message.Message):
    __slots__ = ["number", "page"]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    number: int
    page: Page
    def __init__(self, number: _Optional[int] = ..., page: _Optional[_Union[Page, _Mapping]] = ...) -> None: ...

class Restored(_message.Message):
    __slots__ = ["number", "page", "unable"]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    UNABLE_FIELD_NUMBER: _ClassVar[int]
    number: int
    page: int
    unable: str
    def __init__(self, number: _Optional[int] = ..., page: _Optional[int] = ..., unable: _Optional[str] = ...) -> None: ...

class RestoredChunks(_message.Message):
    __slots__ = ["chunks", "epoch", "server", "source"]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    chunks: int
    epoch: int
    server: str
    source: str
    def __init__(self, server: _Optional[str] = ..., chunks: _Optional[int] = ..., source: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ["applied", "chunk", "header", "level", "payload"]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    applied: bytes
    chunk: int
    header: bytes
    level: int
    payload: bytes
    def __init__(self, chunk: _Optional[int] = ..., level: _Optional[int] = ..., header: _Optional[bytes] = ..., payload: _Optional[bytes] = ..., applied: _Optional[bytes] = ...) -> None: ...

class ResyncReply(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class ResyncRequest(_message.Message):
    __slots__ = ["begun", "broken", "donated", "epoch", "fetched", "handed", "nonce", "process", "rank", "reached", "report", "restored", "role", "taken"]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    BROKEN_FIELD_NUMBER: _ClassVar[int]
    DONATED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FETCHED_FIELD_NUMBER: _ClassVar[int]
    HANDED_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    begun: Begun
    broken: Broken
    donated: Donated
    epoch: int
    fetched: Fetched
    handed: Handed
    nonce: str
    process: int
    rank: int
    reached: Reached
    report: Report
    restored: Restored
    role: Role
    taken: Taken
    def __init__(self, nonce: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., rank: _Optional[int] = ..., epoch: _Optional[int] = ..., process: _Optional[int] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., handed: _Optional[_Union[Handed, _Mapping]] = ..., taken: _Optional[_Union[Taken, _Mapping]] = ..., broken: _Optional[_Union[Broken, _Mapping]] = ..., begun: _Optional[_Union[Begun, _Mapping]] = ..., reached: _Optional[_Union[Reached, _Mapping]] = ..., donated: _Optional[_Union[Donated, _Mapping]] = ..., restored: _Optional[_Union[Restored, _Mapping]] = ..., fetched: _Optional[_Union[Fetched, _Mapping]] = ...) -> None: ...

class RootStream(_message.Message):
    __slots__ = ["children", "node", "stream", "window"]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    children: _containers.RepeatedCompositeFieldContainer[Child]
    node: int
    stream: int
    window: int
    def __init__(self, stream: _Optional[int] = ..., node: _Optional[int] = ..., window: _Optional[int] = ..., children: _Optional[_Iterable[_Union[Child, _Mapping]]] = ...) -> None: ...

class Schedule(_message.Message):
    __slots__ = ["every", "factor", "floor", "kind", "steps", "warmup"]
    EVERY_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    WARMUP_FIELD_NUMBER: _ClassVar[int]
    every: int
    factor: float
    floor: float
    kind: str
    steps: int
    warmup: int
    def __init__(self, kind: _Optional[str] = ..., warmup: _Optional[int] = ..., steps: _Optional[int] = ..., floor: _Optional[float] = ..., every: _Optional[int] = ..., factor: _Optional[float] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ["chunks", "server"]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    chunks: bytes
    server: Address
    def __init__(self, server: _Optional[_Union[Address, _Mapping]] = ..., chunks: _Optional[bytes] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ["first", "rate", "weight_decay"]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    first: int
    rate: float
    weight_decay: float
    def __init__(self, first: _Optional[int] = ..., rate: _Optional[float] = ..., weight_decay: _Optional[float] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ["arrays", "calls", "exponents", "headers", "keys", "payloads"]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    EXPONENTS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    arrays: _containers.RepeatedCompositeFieldContainer[Array]
    calls: int
    exponents: bytes
    headers: bytes
    keys: int
    payloads: bytes
    def __init__(self, calls: _Optional[int] = ..., keys: _Optional[int] = ..., exponents: _Optional[bytes] = ..., arrays: _Optional[_Iterable[_Union[Array, _Mapping]]] = ..., headers: _Optional[bytes] = ..., payloads: _Optional[bytes] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ["budgets", "jobs"]
    BUDGETS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    budgets: _containers.RepeatedCompositeFieldContainer[Budget]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., budgets: _Optional[_Iterable[_Union[Budget, _Mapping]]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class Stream(_message.Message):
    __slots__ = ["node", "priority", "sender", "stream", "window"]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    node: int
    priority: int
    sender: int
    stream: int
    window: int
    def __init__(self, stream: _Optional[int] = ..., node: _Optional[int] = ..., sender: _Optional[int] = ..., window: _Optional[int] = ..., priority: _Optional[int] = ...) -> None: ...

class Take(_message.Message):
    __slots__ = ["page", "results"]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    page: int
    results: _containers.RepeatedCompositeFieldContainer[Result]
    def __init__(self, results: _Optional[_Iterable[_Union[Result, _Mapping]]] = ..., page: _Optional[int] = ...) -> None: ...

class Taken(_message.Message):
    __slots__ = ["page"]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    page: int
    def __init__(self, page: _Optional[int] = ...) -> None: ...

class Want(_message.Message):
    __slots__ = ["chunk", "level"]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    chunk: int
    level: int
    def __init__(self, chunk: _Optional[int] = ..., level: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ["nonce", "process", "rank", "role"]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    nonce: str
    process: int
    rank: int
    role: Role
    def __init__(self, nonce: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., rank: _Optional[int] = ..., process: _Optional[int] = ...) -> None: ...

class Tree(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Admission(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Consistency(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
