# SPDX-License-Identifier: Apache-2.0
"""Elects the primary controller of each role (P4Runtime spec, "Client Arbitration and Controller
Replication").

The primary of a role is the live client whose election id is the highest that the switch has ever
seen for that role; all others are backups. A role may have no primary. Election ids are forgotten
only when the switch restarts.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from google.rpc import code_pb2

from switch.p4runtime.errors import (
    P4RuntimeError,
    failed_precondition,
    invalid_argument,
    not_found,
    permission_denied,
    resource_exhausted,
)
from switch.p4runtime.stubs import p4runtime_pb2

log = logging.getLogger(__name__)

Send = Callable[[p4runtime_pb2.StreamMessageResponse], None]
ElectionId = tuple[int, int]

DEFAULT_ROLE = ""
# Most live clients of one role; BMv2's server takes as many per device.
MAX_CLIENTS = 16
# A role and its highest election id outlive its last client; this bounds the known roles.
MAX_ROLES = 64
LONGEST_ROLE = 256


@dataclass(eq=False)
class Client:
    """One stream that has taken part in arbitration. send may be called from any thread."""

    send: Send
    role: str
    election_id: ElectionId | None


@dataclass
class _Role:
    """The clients of one role, and its highest election id."""

    clients: list[Client] = field(default_factory=list)
    highest: ElectionId | None = None

    @property
    def primary(self) -> Client | None:
        if self.highest is None:
            return None
        for client in self.clients:
            if client.election_id == self.highest:
                return client
        return None


class Arbitration:
    """The live clients of one device, by role. All methods are thread safe.

    like_bmv2: BMv2's rules instead of the specification's: only live clients count for the
    election, a missing election id is the lowest one, and requests without one may write while
    there is no client.
    """

    def __init__(self, device_id: int, like_bmv2: bool = False) -> None:
        self.device_id = device_id
        self._like_bmv2 = like_bmv2
        self._lock = threading.RLock()
        # The default role has full access to the pipeline and always exists.
        self._roles: dict[str, _Role] = {DEFAULT_ROLE: _Role()}

    def update(
        self,
        client: Client | None,
        message: p4runtime_pb2.MasterArbitrationUpdate,
        send: Send,
    ) -> Client:
        """Handles a MasterArbitrationUpdate; returns the client (a new one on first contact).

        Notifies the clients of the role as the spec demands. Raises the error that ends the stream:
        NOT_FOUND (unknown device), INVALID_ARGUMENT (election id taken, role config),
        FAILED_PRECONDITION (another device or role than before), RESOURCE_EXHAUSTED (too many
        clients).
        """
        name = self._role_name(message)
        given = message.election_id if message.HasField("election_id") else None
        election_id = self._id(given)
        with self._lock:
            self._check(client, message, name, election_id)
            role = self._roles.setdefault(name, _Role())
            was_primary = role.primary
            if client is None:
                client = Client(send, name, election_id)
                role.clients.append(client)
            else:
                client.election_id = election_id
            self._forget(role, but=client)
            if election_id is not None and (role.highest is None or election_id >= role.highest):
                role.highest = election_id
                log.info("client with election id %s is primary%s", election_id, _of(name))
                self._notify(name, role, last=client)
            elif was_primary is client:
                log.info("the primary%s became a backup", _of(name))
                self._notify(name, role, last=client)
            else:
                client.send(self._advisory(name, role, client))
            return client

    def leave(self, client: Client) -> None:
        """Removes a client whose stream has ended. Notifies the others if it was the primary."""
        with self._lock:
            role = self._roles[client.role]
            was_primary = role.primary is client
            role.clients.remove(client)
            self._forget(role)
            if was_primary:
                log.info("the primary%s has disconnected", _of(client.role))
                self._notify(client.role, role, last=None)

    def require_primary(
        self, role_name: str, election_id: p4runtime_pb2.Uint128 | None, what: str
    ) -> None:
        """Raises NOT_FOUND for an unknown role, and PERMISSION_DENIED unless the live client with
        this election id is the role's primary. None: the request carries no election id."""
        with self._lock:
            role = self._roles.get(role_name)
            if role is None:
                known = ", ".join(repr(name) for name in sorted(self._roles) if name) or "none"
                raise not_found(f"role {role_name!r} is not known (besides the default: {known})")
            primary = role.primary
            if self._like_bmv2 and election_id is None and not self._clients():
                return
            if primary is None:
                raise permission_denied(
                    f"{what} needs a primary client{_of(role_name)}: there is none; open a "
                    f"StreamChannel with an election id above {role.highest or (0, 0)}"
                )
            asked = self._id(election_id)
            if asked is None or primary.election_id != asked:
                raise permission_denied(
                    f"{what} is the primary client's alone: election id {asked or 'none'} is not "
                    f"the primary's{_of(role_name)}"
                )

    def _id(self, message: p4runtime_pb2.Uint128 | None) -> ElectionId | None:
        if message is None:
            return (0, 0) if self._like_bmv2 else None
        return (message.high, message.low)

    def _forget(self, role: _Role, but: Client | None = None) -> None:
        """Lowers the highest election id to that of the live clients but one, as BMv2 does."""
        if self._like_bmv2:
            live = [one.election_id for one in role.clients if one is not but]
            role.highest = max((one for one in live if one is not None), default=None)

    def _clients(self) -> bool:
        return any(role.clients for role in self._roles.values())

    def is_primary(self, client: Client) -> bool:
        """Returns True if this client may write and send packets."""
        with self._lock:
            return self._roles[client.role].primary is client

    def primaries(self) -> list[Client]:
        """Returns the primary of each role that has one: the receivers of packet-ins."""
        with self._lock:
            found = [role.primary for role in self._roles.values()]
        return [client for client in found if client is not None]

    def _role_name(self, message: p4runtime_pb2.MasterArbitrationUpdate) -> str:
        role = message.role
        if role.HasField("config"):
            raise invalid_argument(
                f"role.config ({role.config.type_url}) is not a scheme known here: leave it unset, "
                f"every role has access to the whole pipeline"
            )
        if role.id and not role.name:
            raise invalid_argument("role.id was deprecated in P4Runtime 1.4: give role.name")
        return str(role.name)

    def _check(
        self,
        client: Client | None,
        message: p4runtime_pb2.MasterArbitrationUpdate,
        name: str,
        election_id: ElectionId | None,
    ) -> None:
        problem: P4RuntimeError | None = None
        known = name in self._roles
        if message.device_id != self.device_id:
            text = f"device_id {message.device_id}: this switch is device {self.device_id}"
            problem = not_found(text) if client is None else failed_precondition(text)
        elif client is not None and client.role != name:
            problem = failed_precondition(
                f"this stream has role {client.role!r}: open another one for role {name!r}"
            )
        elif not known and len(name) > LONGEST_ROLE:
            problem = invalid_argument(
                f"a role's name of {len(name)} characters; allowed: {LONGEST_ROLE}"
            )
        elif not known and len(self._roles) >= MAX_ROLES:
            problem = resource_exhausted(f"{MAX_ROLES} roles are known, which is the limit")
        else:
            clients = self._roles.get(name, _Role()).clients
            others = [other for other in clients if other is not client]
            if election_id is not None and any(o.election_id == election_id for o in others):
                problem = invalid_argument(
                    f"election id {election_id} is used by another client{_of(name)}"
                )
            elif len(others) >= MAX_CLIENTS:
                problem = resource_exhausted(
                    f"{MAX_CLIENTS} clients{_of(name)} are connected, which is the limit"
                )
        if problem is not None:
            raise problem

    def _notify(self, name: str, role: _Role, last: Client | None) -> None:
        """Notifies all clients of the role; a new primary last, as the spec orders."""
        for client in role.clients:
            if client is not last:
                client.send(self._advisory(name, role, client))
        if last is not None:
            last.send(self._advisory(name, role, last))

    def _advisory(
        self, name: str, role: _Role, client: Client
    ) -> p4runtime_pb2.StreamMessageResponse:
        response = p4runtime_pb2.StreamMessageResponse()
        update = response.arbitration
        update.device_id = self.device_id
        if name != DEFAULT_ROLE:
            update.role.name = name
        if role.highest is not None:
            update.election_id.high, update.election_id.low = role.highest
        primary = role.primary
        if primary is None:
            update.status.code = code_pb2.NOT_FOUND
            update.status.message = "there is no primary"
        elif primary is client:
            update.status.code = code_pb2.OK
            update.status.message = "is primary"
        else:
            update.status.code = code_pb2.ALREADY_EXISTS
            update.status.message = "is backup"
        return response


def _of(role: str) -> str:
    return f" of role {role!r}" if role else ""
