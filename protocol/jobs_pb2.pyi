from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tree(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TREE_UNSPECIFIED: _ClassVar[Tree]
    TWO_LEVEL: _ClassVar[Tree]
    TOR: _ClassVar[Tree]
    CORE: _ClassVar[Tree]
    NONE: _ClassVar[Tree]
    TWO_LEVEL_SERVER: _ClassVar[Tree]
    CORE_SERVER: _ClassVar[Tree]

class Admission(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NETWORK: _ClassVar[Admission]
    SERVERS: _ClassVar[Admission]

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    WORKER: _ClassVar[Role]
    SERVER: _ClassVar[Role]

class Consistency(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SYNCHRONOUS: _ClassVar[Consistency]
    ASYNCHRONOUS: _ClassVar[Consistency]
    BOUNDED: _ClassVar[Consistency]
TREE_UNSPECIFIED: Tree
TWO_LEVEL: Tree
TOR: Tree
CORE: Tree
NONE: Tree
TWO_LEVEL_SERVER: Tree
CORE_SERVER: Tree
NETWORK: Admission
SERVERS: Admission
ROLE_UNSPECIFIED: Role
WORKER: Role
SERVER: Role
SYNCHRONOUS: Consistency
ASYNCHRONOUS: Consistency
BOUNDED: Consistency

class Address(_message.Message):
    __slots__ = ("ipv4", "port")
    IPV4_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    ipv4: int
    port: int
    def __init__(self, ipv4: _Optional[int] = ..., port: _Optional[int] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("host", "rank", "spare")
    HOST_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SPARE_FIELD_NUMBER: _ClassVar[int]
    host: str
    rank: int
    spare: bool
    def __init__(self, host: _Optional[str] = ..., rank: _Optional[int] = ..., spare: bool = ...) -> None: ...

class CreateServiceRequest(_message.Message):
    __slots__ = ("namespace", "workers", "servers", "tree", "window", "streams", "lease", "admission", "slice_bytes", "pipeline", "propagation", "balance")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_FIELD_NUMBER: _ClassVar[int]
    SLICE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    PROPAGATION_FIELD_NUMBER: _ClassVar[int]
    BALANCE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    workers: _containers.RepeatedCompositeFieldContainer[Member]
    servers: _containers.RepeatedCompositeFieldContainer[Member]
    tree: Tree
    window: int
    streams: int
    lease: float
    admission: Admission
    slice_bytes: int
    pipeline: Pipeline
    propagation: Propagation
    balance: Balance
    def __init__(self, namespace: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., servers: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., tree: _Optional[_Union[Tree, str]] = ..., window: _Optional[int] = ..., streams: _Optional[int] = ..., lease: _Optional[float] = ..., admission: _Optional[_Union[Admission, str]] = ..., slice_bytes: _Optional[int] = ..., pipeline: _Optional[_Union[Pipeline, _Mapping]] = ..., propagation: _Optional[_Union[Propagation, _Mapping]] = ..., balance: _Optional[_Union[Balance, _Mapping]] = ...) -> None: ...

class Balance(_message.Message):
    __slots__ = ("policy", "most_bytes", "explore", "seed", "measure")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    MOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXPLORE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MEASURE_FIELD_NUMBER: _ClassVar[int]
    policy: str
    most_bytes: int
    explore: float
    seed: int
    measure: bool
    def __init__(self, policy: _Optional[str] = ..., most_bytes: _Optional[int] = ..., explore: _Optional[float] = ..., seed: _Optional[int] = ..., measure: bool = ...) -> None: ...

class Propagation(_message.Message):
    __slots__ = ("order", "classes", "in_network", "parts", "assign", "release", "credit")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    IN_NETWORK_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    ASSIGN_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    order: str
    classes: int
    in_network: bool
    parts: bool
    assign: str
    release: str
    credit: int
    def __init__(self, order: _Optional[str] = ..., classes: _Optional[int] = ..., in_network: bool = ..., parts: bool = ..., assign: _Optional[str] = ..., release: _Optional[str] = ..., credit: _Optional[int] = ...) -> None: ...

class Pipeline(_message.Message):
    __slots__ = ("kind", "ablated")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ABLATED_FIELD_NUMBER: _ClassVar[int]
    kind: str
    ablated: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, kind: _Optional[str] = ..., ablated: _Optional[_Iterable[str]] = ...) -> None: ...

class CreateServiceReply(_message.Message):
    __slots__ = ("nonce", "job", "tree", "servers")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    nonce: str
    job: int
    tree: Tree
    servers: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, nonce: _Optional[str] = ..., job: _Optional[int] = ..., tree: _Optional[_Union[Tree, str]] = ..., servers: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class ConnectServiceRequest(_message.Message):
    __slots__ = ("nonce", "role", "rank", "address", "process")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    nonce: str
    role: Role
    rank: int
    address: Address
    process: int
    def __init__(self, nonce: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., rank: _Optional[int] = ..., address: _Optional[_Union[Address, _Mapping]] = ..., process: _Optional[int] = ...) -> None: ...

class ConnectServiceReply(_message.Message):
    __slots__ = ("job", "world", "lanes")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    job: int
    world: int
    lanes: int
    def __init__(self, job: _Optional[int] = ..., world: _Optional[int] = ..., lanes: _Optional[int] = ...) -> None: ...

class Key(_message.Message):
    __slots__ = ("key", "name", "elements")
    KEY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    key: int
    name: str
    elements: int
    def __init__(self, key: _Optional[int] = ..., name: _Optional[str] = ..., elements: _Optional[int] = ...) -> None: ...

class Optimizer(_message.Message):
    __slots__ = ("name", "rate", "momentum", "weight_decay", "beta1", "beta2", "epsilon", "schedule", "spans", "first_step", "consistency", "staleness")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    MOMENTUM_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    BETA1_FIELD_NUMBER: _ClassVar[int]
    BETA2_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    name: str
    rate: float
    momentum: float
    weight_decay: float
    beta1: float
    beta2: float
    epsilon: float
    schedule: Schedule
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    first_step: int
    consistency: Consistency
    staleness: int
    def __init__(self, name: _Optional[str] = ..., rate: _Optional[float] = ..., momentum: _Optional[float] = ..., weight_decay: _Optional[float] = ..., beta1: _Optional[float] = ..., beta2: _Optional[float] = ..., epsilon: _Optional[float] = ..., schedule: _Optional[_Union[Schedule, _Mapping]] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., first_step: _Optional[int] = ..., consistency: _Optional[_Union[Consistency, str]] = ..., staleness: _Optional[int] = ...) -> None: ...

class Schedule(_message.Message):
    __slots__ = ("kind", "warmup", "steps", "floor", "every", "factor")
    KIND_FIELD_NUMBER: _ClassVar[int]
    WARMUP_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    EVERY_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    kind: str
    warmup: int
    steps: int
    floor: float
    every: int
    factor: float
    def __init__(self, kind: _Optional[str] = ..., warmup: _Optional[int] = ..., steps: _Optional[int] = ..., floor: _Optional[float] = ..., every: _Optional[int] = ..., factor: _Optional[float] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("first", "rate", "weight_decay")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    first: int
    rate: float
    weight_decay: float
    def __init__(self, first: _Optional[int] = ..., rate: _Optional[float] = ..., weight_decay: _Optional[float] = ...) -> None: ...

class InitServiceRequest(_message.Message):
    __slots__ = ("nonce", "rank", "keys", "process", "gives_state", "optimizer")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    GIVES_STATE_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    nonce: str
    rank: int
    keys: _containers.RepeatedCompositeFieldContainer[Key]
    process: int
    gives_state: bool
    optimizer: Optimizer
    def __init__(self, nonce: _Optional[str] = ..., rank: _Optional[int] = ..., keys: _Optional[_Iterable[_Union[Key, _Mapping]]] = ..., process: _Optional[int] = ..., gives_state: bool = ..., optimizer: _Optional[_Union[Optimizer, _Mapping]] = ...) -> None: ...

class InitServiceReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("nonce", "role", "rank", "process")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    nonce: str
    role: Role
    rank: int
    process: int
    def __init__(self, nonce: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., rank: _Optional[int] = ..., process: _Optional[int] = ...) -> None: ...

class Instruction(_message.Message):
    __slots__ = ("epoch", "plan", "halt", "hand", "take", "boundary", "donate", "restore", "fetch", "remap")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    HALT_FIELD_NUMBER: _ClassVar[int]
    HAND_FIELD_NUMBER: _ClassVar[int]
    TAKE_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    DONATE_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    REMAP_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    plan: Plan
    halt: Halt
    hand: Hand
    take: Take
    boundary: Boundary
    donate: Donate
    restore: Restore
    fetch: Fetch
    remap: Remap
    def __init__(self, epoch: _Optional[int] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., halt: _Optional[_Union[Halt, _Mapping]] = ..., hand: _Optional[_Union[Hand, _Mapping]] = ..., take: _Optional[_Union[Take, _Mapping]] = ..., boundary: _Optional[_Union[Boundary, _Mapping]] = ..., donate: _Optional[_Union[Donate, _Mapping]] = ..., restore: _Optional[_Union[Restore, _Mapping]] = ..., fetch: _Optional[_Union[Fetch, _Mapping]] = ..., remap: _Optional[_Union[Remap, _Mapping]] = ...) -> None: ...

class Moved(_message.Message):
    __slots__ = ("slices", "servers")
    SLICES_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    slices: _containers.RepeatedScalarFieldContainer[int]
    servers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, slices: _Optional[_Iterable[int]] = ..., servers: _Optional[_Iterable[int]] = ...) -> None: ...

class Remap(_message.Message):
    __slots__ = ("number", "moved", "from_round", "holds", "cancelled", "before", "drain")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    FROM_ROUND_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    number: int
    moved: Moved
    from_round: int
    holds: bool
    cancelled: bool
    before: Moved
    drain: bool
    def __init__(self, number: _Optional[int] = ..., moved: _Optional[_Union[Moved, _Mapping]] = ..., from_round: _Optional[int] = ..., holds: bool = ..., cancelled: bool = ..., before: _Optional[_Union[Moved, _Mapping]] = ..., drain: bool = ...) -> None: ...

class Measured(_message.Message):
    __slots__ = ("round", "seconds", "sums", "waited", "ended", "sent")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    WAITED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    round: int
    seconds: float
    sums: _containers.RepeatedScalarFieldContainer[int]
    waited: _containers.RepeatedScalarFieldContainer[float]
    ended: _containers.RepeatedScalarFieldContainer[float]
    sent: float
    def __init__(self, round: _Optional[int] = ..., seconds: _Optional[float] = ..., sums: _Optional[_Iterable[int]] = ..., waited: _Optional[_Iterable[float]] = ..., ended: _Optional[_Iterable[float]] = ..., sent: _Optional[float] = ...) -> None: ...

class ServerMeasured(_message.Message):
    __slots__ = ("seconds", "sums", "handled", "queued", "optimized", "received_bytes", "sent_bytes", "summing")
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    HANDLED_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZED_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SUMMING_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    sums: int
    handled: float
    queued: float
    optimized: float
    received_bytes: int
    sent_bytes: int
    summing: int
    def __init__(self, seconds: _Optional[float] = ..., sums: _Optional[int] = ..., handled: _Optional[float] = ..., queued: _Optional[float] = ..., optimized: _Optional[float] = ..., received_bytes: _Optional[int] = ..., sent_bytes: _Optional[int] = ..., summing: _Optional[int] = ...) -> None: ...

class MovedHere(_message.Message):
    __slots__ = ("number", "chunks", "bytes", "seconds")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    number: int
    chunks: int
    bytes: int
    seconds: float
    def __init__(self, number: _Optional[int] = ..., chunks: _Optional[int] = ..., bytes: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class Remapped(_message.Message):
    __slots__ = ("number", "from_round", "decided", "begun", "drained")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FROM_ROUND_FIELD_NUMBER: _ClassVar[int]
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    number: int
    from_round: int
    decided: bool
    begun: int
    drained: bool
    def __init__(self, number: _Optional[int] = ..., from_round: _Optional[int] = ..., decided: bool = ..., begun: _Optional[int] = ..., drained: bool = ...) -> None: ...

class Halt(_message.Message):
    __slots__ = ("reason", "servers", "optimizer", "chunks", "lanes", "workers")
    REASON_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    servers: _containers.RepeatedCompositeFieldContainer[Address]
    optimizer: Optimizer
    chunks: int
    lanes: int
    workers: int
    def __init__(self, reason: _Optional[str] = ..., servers: _Optional[_Iterable[_Union[Address, _Mapping]]] = ..., optimizer: _Optional[_Union[Optimizer, _Mapping]] = ..., chunks: _Optional[int] = ..., lanes: _Optional[int] = ..., workers: _Optional[int] = ...) -> None: ...

class Fetch(_message.Message):
    __slots__ = ("sources",)
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    sources: _containers.RepeatedCompositeFieldContainer[Source]
    def __init__(self, sources: _Optional[_Iterable[_Union[Source, _Mapping]]] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("server", "chunks")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    server: Address
    chunks: bytes
    def __init__(self, server: _Optional[_Union[Address, _Mapping]] = ..., chunks: _Optional[bytes] = ...) -> None: ...

class Hand(_message.Message):
    __slots__ = ("wants",)
    WANTS_FIELD_NUMBER: _ClassVar[int]
    wants: _containers.RepeatedCompositeFieldContainer[Want]
    def __init__(self, wants: _Optional[_Iterable[_Union[Want, _Mapping]]] = ...) -> None: ...

class Want(_message.Message):
    __slots__ = ("chunk", "level")
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    chunk: int
    level: int
    def __init__(self, chunk: _Optional[int] = ..., level: _Optional[int] = ...) -> None: ...

class Take(_message.Message):
    __slots__ = ("results", "page")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[Result]
    page: int
    def __init__(self, results: _Optional[_Iterable[_Union[Result, _Mapping]]] = ..., page: _Optional[int] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("chunk", "level", "header", "payload", "applied")
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    chunk: int
    level: int
    header: bytes
    payload: bytes
    applied: bytes
    def __init__(self, chunk: _Optional[int] = ..., level: _Optional[int] = ..., header: _Optional[bytes] = ..., payload: _Optional[bytes] = ..., applied: _Optional[bytes] = ...) -> None: ...

class Boundary(_message.Message):
    __slots__ = ("number", "until")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    number: int
    until: int
    def __init__(self, number: _Optional[int] = ..., until: _Optional[int] = ...) -> None: ...

class Donate(_message.Message):
    __slots__ = ("number", "page")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    number: int
    page: int
    def __init__(self, number: _Optional[int] = ..., page: _Optional[int] = ...) -> None: ...

class Restore(_message.Message):
    __slots__ = ("number", "page")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    number: int
    page: Page
    def __init__(self, number: _Optional[int] = ..., page: _Optional[_Union[Page, _Mapping]] = ...) -> None: ...

class Page(_message.Message):
    __slots__ = ("page", "size", "sha256", "data")
    PAGE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    page: int
    size: int
    sha256: bytes
    data: bytes
    def __init__(self, page: _Optional[int] = ..., size: _Optional[int] = ..., sha256: _Optional[bytes] = ..., data: _Optional[bytes] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ("calls", "keys", "exponents", "arrays", "headers", "payloads")
    CALLS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    EXPONENTS_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    calls: int
    keys: int
    exponents: bytes
    arrays: _containers.RepeatedCompositeFieldContainer[Array]
    headers: bytes
    payloads: bytes
    def __init__(self, calls: _Optional[int] = ..., keys: _Optional[int] = ..., exponents: _Optional[bytes] = ..., arrays: _Optional[_Iterable[_Union[Array, _Mapping]]] = ..., headers: _Optional[bytes] = ..., payloads: _Optional[bytes] = ...) -> None: ...

class Array(_message.Message):
    __slots__ = ("name", "type", "shape", "data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class ResyncRequest(_message.Message):
    __slots__ = ("nonce", "role", "rank", "epoch", "process", "report", "handed", "taken", "broken", "begun", "reached", "donated", "restored", "fetched", "remapped", "measured", "server_measured", "moved_here")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    HANDED_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    BROKEN_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    DONATED_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    FETCHED_FIELD_NUMBER: _ClassVar[int]
    REMAPPED_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    SERVER_MEASURED_FIELD_NUMBER: _ClassVar[int]
    MOVED_HERE_FIELD_NUMBER: _ClassVar[int]
    nonce: str
    role: Role
    rank: int
    epoch: int
    process: int
    report: Report
    handed: Handed
    taken: Taken
    broken: Broken
    begun: Begun
    reached: Reached
    donated: Donated
    restored: Restored
    fetched: Fetched
    remapped: Remapped
    measured: Measured
    server_measured: ServerMeasured
    moved_here: MovedHere
    def __init__(self, nonce: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., rank: _Optional[int] = ..., epoch: _Optional[int] = ..., process: _Optional[int] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., handed: _Optional[_Union[Handed, _Mapping]] = ..., taken: _Optional[_Union[Taken, _Mapping]] = ..., broken: _Optional[_Union[Broken, _Mapping]] = ..., begun: _Optional[_Union[Begun, _Mapping]] = ..., reached: _Optional[_Union[Reached, _Mapping]] = ..., donated: _Optional[_Union[Donated, _Mapping]] = ..., restored: _Optional[_Union[Restored, _Mapping]] = ..., fetched: _Optional[_Union[Fetched, _Mapping]] = ..., remapped: _Optional[_Union[Remapped, _Mapping]] = ..., measured: _Optional[_Union[Measured, _Mapping]] = ..., server_measured: _Optional[_Union[ServerMeasured, _Mapping]] = ..., moved_here: _Optional[_Union[MovedHere, _Mapping]] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("levels",)
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    levels: bytes
    def __init__(self, levels: _Optional[bytes] = ...) -> None: ...

class Handed(_message.Message):
    __slots__ = ("results", "last")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[Result]
    last: bool
    def __init__(self, results: _Optional[_Iterable[_Union[Result, _Mapping]]] = ..., last: bool = ...) -> None: ...

class Taken(_message.Message):
    __slots__ = ("page",)
    PAGE_FIELD_NUMBER: _ClassVar[int]
    page: int
    def __init__(self, page: _Optional[int] = ...) -> None: ...

class Broken(_message.Message):
    __slots__ = ("stream", "seq", "chunk", "reason")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    stream: int
    seq: int
    chunk: int
    reason: str
    def __init__(self, stream: _Optional[int] = ..., seq: _Optional[int] = ..., chunk: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Begun(_message.Message):
    __slots__ = ("number", "calls")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    number: int
    calls: int
    def __init__(self, number: _Optional[int] = ..., calls: _Optional[int] = ...) -> None: ...

class Reached(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Donated(_message.Message):
    __slots__ = ("number", "page", "unable")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    UNABLE_FIELD_NUMBER: _ClassVar[int]
    number: int
    page: Page
    unable: str
    def __init__(self, number: _Optional[int] = ..., page: _Optional[_Union[Page, _Mapping]] = ..., unable: _Optional[str] = ...) -> None: ...

class Restored(_message.Message):
    __slots__ = ("number", "page", "unable")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    UNABLE_FIELD_NUMBER: _ClassVar[int]
    number: int
    page: int
    unable: str
    def __init__(self, number: _Optional[int] = ..., page: _Optional[int] = ..., unable: _Optional[str] = ...) -> None: ...

class Fetched(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResyncReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Stream(_message.Message):
    __slots__ = ("stream", "node", "sender", "window", "priority")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    stream: int
    node: int
    sender: int
    window: int
    priority: int
    def __init__(self, stream: _Optional[int] = ..., node: _Optional[int] = ..., sender: _Optional[int] = ..., window: _Optional[int] = ..., priority: _Optional[int] = ...) -> None: ...

class Child(_message.Message):
    __slots__ = ("sender", "address", "workers", "node")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    sender: int
    address: Address
    workers: int
    node: int
    def __init__(self, sender: _Optional[int] = ..., address: _Optional[_Union[Address, _Mapping]] = ..., workers: _Optional[int] = ..., node: _Optional[int] = ...) -> None: ...

class RootStream(_message.Message):
    __slots__ = ("stream", "node", "window", "children")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    stream: int
    node: int
    window: int
    children: _containers.RepeatedCompositeFieldContainer[Child]
    def __init__(self, stream: _Optional[int] = ..., node: _Optional[int] = ..., window: _Optional[int] = ..., children: _Optional[_Iterable[_Union[Child, _Mapping]]] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("job", "epoch", "world", "lanes", "rank", "streams", "servers", "callers", "workers", "roots", "chunks_per_slice", "link_rate", "windows", "members", "met_in", "met_worker", "optimizer", "key_chunks", "tree", "summed_at", "pipeline", "propagation", "congestion", "moved", "measures", "codec")
    class WindowsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    CALLERS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    ROOTS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_PER_SLICE_FIELD_NUMBER: _ClassVar[int]
    LINK_RATE_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    MET_IN_FIELD_NUMBER: _ClassVar[int]
    MET_WORKER_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    KEY_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    SUMMED_AT_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    PROPAGATION_FIELD_NUMBER: _ClassVar[int]
    CONGESTION_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    MEASURES_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    job: int
    epoch: int
    world: int
    lanes: int
    rank: int
    streams: _containers.RepeatedCompositeFieldContainer[Stream]
    servers: _containers.RepeatedCompositeFieldContainer[Address]
    callers: _containers.RepeatedScalarFieldContainer[int]
    workers: _containers.RepeatedCompositeFieldContainer[Address]
    roots: _containers.RepeatedCompositeFieldContainer[RootStream]
    chunks_per_slice: int
    link_rate: int
    windows: _containers.ScalarMap[int, int]
    members: _containers.RepeatedScalarFieldContainer[int]
    met_in: int
    met_worker: int
    optimizer: Optimizer
    key_chunks: _containers.RepeatedScalarFieldContainer[int]
    tree: Tree
    summed_at: _containers.RepeatedScalarFieldContainer[str]
    pipeline: Pipeline
    propagation: Propagation
    congestion: str
    moved: Moved
    measures: bool
    codec: str
    def __init__(self, job: _Optional[int] = ..., epoch: _Optional[int] = ..., world: _Optional[int] = ..., lanes: _Optional[int] = ..., rank: _Optional[int] = ..., streams: _Optional[_Iterable[_Union[Stream, _Mapping]]] = ..., servers: _Optional[_Iterable[_Union[Address, _Mapping]]] = ..., callers: _Optional[_Iterable[int]] = ..., workers: _Optional[_Iterable[_Union[Address, _Mapping]]] = ..., roots: _Optional[_Iterable[_Union[RootStream, _Mapping]]] = ..., chunks_per_slice: _Optional[int] = ..., link_rate: _Optional[int] = ..., windows: _Optional[_Mapping[int, int]] = ..., members: _Optional[_Iterable[int]] = ..., met_in: _Optional[int] = ..., met_worker: _Optional[int] = ..., optimizer: _Optional[_Union[Optimizer, _Mapping]] = ..., key_chunks: _Optional[_Iterable[int]] = ..., tree: _Optional[_Union[Tree, str]] = ..., summed_at: _Optional[_Iterable[str]] = ..., pipeline: _Optional[_Union[Pipeline, _Mapping]] = ..., propagation: _Optional[_Union[Propagation, _Mapping]] = ..., congestion: _Optional[str] = ..., moved: _Optional[_Union[Moved, _Mapping]] = ..., measures: bool = ..., codec: _Optional[str] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("nonce", "role", "rank", "epoch", "unanswered", "process", "awaited", "awaited_key")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    UNANSWERED_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    AWAITED_KEY_FIELD_NUMBER: _ClassVar[int]
    nonce: str
    role: Role
    rank: int
    epoch: int
    unanswered: float
    process: int
    awaited: int
    awaited_key: str
    def __init__(self, nonce: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., rank: _Optional[int] = ..., epoch: _Optional[int] = ..., unanswered: _Optional[float] = ..., process: _Optional[int] = ..., awaited: _Optional[int] = ..., awaited_key: _Optional[str] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("nonce", "role", "rank", "reason", "results", "levels", "others_go_on", "process")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    OTHERS_GO_ON_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    nonce: str
    role: Role
    rank: int
    reason: str
    results: _containers.RepeatedCompositeFieldContainer[Result]
    levels: bytes
    others_go_on: bool
    process: int
    def __init__(self, nonce: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., rank: _Optional[int] = ..., reason: _Optional[str] = ..., results: _Optional[_Iterable[_Union[Result, _Mapping]]] = ..., levels: _Optional[bytes] = ..., others_go_on: bool = ..., process: _Optional[int] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GoneRequest(_message.Message):
    __slots__ = ("nonce", "role", "rank", "reason")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    nonce: str
    role: Role
    rank: int
    reason: str
    def __init__(self, nonce: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., rank: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class GoneReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ScaleRequest(_message.Message):
    __slots__ = ("nonce", "added", "removed")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    nonce: str
    added: _containers.RepeatedScalarFieldContainer[str]
    removed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, nonce: _Optional[str] = ..., added: _Optional[_Iterable[str]] = ..., removed: _Optional[_Iterable[str]] = ...) -> None: ...

class EnrolRequest(_message.Message):
    __slots__ = ("nonce", "host")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    nonce: str
    host: str
    def __init__(self, nonce: _Optional[str] = ..., host: _Optional[str] = ...) -> None: ...

class EnrolReply(_message.Message):
    __slots__ = ("rank",)
    RANK_FIELD_NUMBER: _ClassVar[int]
    rank: int
    def __init__(self, rank: _Optional[int] = ...) -> None: ...

class ScaleReply(_message.Message):
    __slots__ = ("from_round", "slices", "bytes", "servers", "spares")
    FROM_ROUND_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    SPARES_FIELD_NUMBER: _ClassVar[int]
    from_round: int
    slices: int
    bytes: int
    servers: _containers.RepeatedScalarFieldContainer[str]
    spares: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, from_round: _Optional[int] = ..., slices: _Optional[int] = ..., bytes: _Optional[int] = ..., servers: _Optional[_Iterable[str]] = ..., spares: _Optional[_Iterable[str]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Budget(_message.Message):
    __slots__ = ("switch", "slots", "used")
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    switch: str
    slots: int
    used: int
    def __init__(self, switch: _Optional[str] = ..., slots: _Optional[int] = ..., used: _Optional[int] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("job", "namespace", "state", "epoch", "world", "connected", "tree", "slots", "reason", "window", "restored", "servers", "moved", "times", "moves")
    class SlotsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    job: int
    namespace: str
    state: str
    epoch: int
    world: int
    connected: int
    tree: str
    slots: _containers.ScalarMap[str, int]
    reason: str
    window: int
    restored: _containers.RepeatedCompositeFieldContainer[RestoredChunks]
    servers: _containers.RepeatedScalarFieldContainer[str]
    moved: Moved
    times: _containers.RepeatedCompositeFieldContainer[ServerTimes]
    moves: _containers.RepeatedCompositeFieldContainer[Move]
    def __init__(self, job: _Optional[int] = ..., namespace: _Optional[str] = ..., state: _Optional[str] = ..., epoch: _Optional[int] = ..., world: _Optional[int] = ..., connected: _Optional[int] = ..., tree: _Optional[str] = ..., slots: _Optional[_Mapping[str, int]] = ..., reason: _Optional[str] = ..., window: _Optional[int] = ..., restored: _Optional[_Iterable[_Union[RestoredChunks, _Mapping]]] = ..., servers: _Optional[_Iterable[str]] = ..., moved: _Optional[_Union[Moved, _Mapping]] = ..., times: _Optional[_Iterable[_Union[ServerTimes, _Mapping]]] = ..., moves: _Optional[_Iterable[_Union[Move, _Mapping]]] = ...) -> None: ...

class Move(_message.Message):
    __slots__ = ("version", "number", "epoch", "from_round", "reason", "slices", "bytes", "seconds", "transfer_seconds")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FROM_ROUND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    version: int
    number: int
    epoch: int
    from_round: int
    reason: str
    slices: int
    bytes: int
    seconds: float
    transfer_seconds: float
    def __init__(self, version: _Optional[int] = ..., number: _Optional[int] = ..., epoch: _Optional[int] = ..., from_round: _Optional[int] = ..., reason: _Optional[str] = ..., slices: _Optional[int] = ..., bytes: _Optional[int] = ..., seconds: _Optional[float] = ..., transfer_seconds: _Optional[float] = ...) -> None: ...

class ServerTimes(_message.Message):
    __slots__ = ("server", "rounds", "sums", "waited", "handled", "queued", "optimized", "holding", "summing", "received", "sent", "blamed", "straggles")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    WAITED_FIELD_NUMBER: _ClassVar[int]
    HANDLED_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZED_FIELD_NUMBER: _ClassVar[int]
    HOLDING_FIELD_NUMBER: _ClassVar[int]
    SUMMING_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    BLAMED_FIELD_NUMBER: _ClassVar[int]
    STRAGGLES_FIELD_NUMBER: _ClassVar[int]
    server: str
    rounds: int
    sums: float
    waited: float
    handled: float
    queued: float
    optimized: float
    holding: float
    summing: float
    received: float
    sent: float
    blamed: float
    straggles: bool
    def __init__(self, server: _Optional[str] = ..., rounds: _Optional[int] = ..., sums: _Optional[float] = ..., waited: _Optional[float] = ..., handled: _Optional[float] = ..., queued: _Optional[float] = ..., optimized: _Optional[float] = ..., holding: _Optional[float] = ..., summing: _Optional[float] = ..., received: _Optional[float] = ..., sent: _Optional[float] = ..., blamed: _Optional[float] = ..., straggles: bool = ...) -> None: ...

class RestoredChunks(_message.Message):
    __slots__ = ("server", "chunks", "source", "epoch")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    server: str
    chunks: int
    source: str
    epoch: int
    def __init__(self, server: _Optional[str] = ..., chunks: _Optional[int] = ..., source: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("jobs", "budgets")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    BUDGETS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    budgets: _containers.RepeatedCompositeFieldContainer[Budget]
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., budgets: _Optional[_Iterable[_Union[Budget, _Mapping]]] = ...) -> None: ...
