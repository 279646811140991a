# SPDX-License-Identifier: Apache-2.0
"""Errors of P4Runtime requests, each with a canonical code (P4Runtime spec, "Error Reporting
Messages").

Request handlers raise `P4RuntimeError`; only the gRPC layer turns one into the status of an RPC, so
a caller in the same process gets a typed exception and needs no gRPC.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from google.rpc import code_pb2, status_pb2

from switch.p4runtime.stubs import p4runtime_pb2

# The "<target>-<arch>-<vendor>" triplet of p4.v1.Error.space.
ERROR_SPACE = "embedded-v1model-rackhub"

# A status travels as HTTP/2 metadata, of which a gRPC client accepts 8 KB by default (P4Runtime
# spec, "gRPC Metadata Maximum Size"); beyond that it sees RESOURCE_EXHAUSTED and none of the
# errors. The rest is for the other metadata. About 190 updates fit, with codes alone.
_STATUS_BYTES = 7500
_CUT = b"..."


class P4RuntimeError(Exception):
    """A request that was refused.

    code: canonical google.rpc code (int)
    message: what is wrong and what would be right
    errors: of a batch (Write, Read), one p4.v1.Error per element of the request, in its order, OK
        ones included; empty when the request failed as a whole
    """

    def __init__(
        self,
        code: int,
        message: str,
        errors: Sequence[p4runtime_pb2.Error] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.errors = list(errors)

    @property
    def code_name(self) -> str:
        """The name of the canonical code, such as "NOT_FOUND"."""
        return str(code_pb2.Code.Name(self.code))

    def __str__(self) -> str:
        lines = [f"{self.code_name}: {self.message}"]
        for index, error in enumerate(self.errors):
            if error.canonical_code != code_pb2.OK:
                name = code_pb2.Code.Name(error.canonical_code)
                lines.append(f"  element {index}: {name}: {error.message}")
        return "\n".join(lines)

    def to_error(self) -> p4runtime_pb2.Error:
        """Returns the p4.v1.Error of one element of a batch."""
        return p4runtime_pb2.Error(
            canonical_code=self.code, message=self.message, space=ERROR_SPACE
        )

    def to_status(self) -> status_pb2.Status:
        """Returns a google.rpc.Status with one p4.v1.Error per element of the batch.

        The number of details is the number of elements (spec, "Error Reporting" of Write); messages
        are cut to the metadata limit of an ordinary client. If not even the codes fit there are no
        details, and the message gives the first error.
        """
        status = self._status(self.errors)
        if status.ByteSize() <= _STATUS_BYTES:
            return status
        codes = [p4runtime_pb2.Error(canonical_code=e.canonical_code) for e in self.errors]
        room = _STATUS_BYTES - self._status(codes).ByteSize()
        if room < 0:
            return status_pb2.Status(code=self.code, message=self._without_details())
        failed = sum(1 for error in self.errors if error.message)
        # Length fields of growing messages take up to four bytes more.
        share = room // max(failed, 1) - 6
        if share > len(_CUT):
            for short, error in zip(codes, self.errors, strict=True):
                text = error.message.encode()
                if len(text) > share:
                    text = text[: share - len(_CUT)] + _CUT
                short.message = text.decode(errors="ignore")
        return self._status(codes)

    def _without_details(self) -> str:
        index, error = next(
            (index, error) for index, error in enumerate(self.errors) if error.canonical_code
        )
        name = code_pb2.Code.Name(error.canonical_code)
        return (
            f"{self.message}; first, element {index}: {name}: {error.message[:500]} (the errors of "
            f"{len(self.errors)} elements are more than an answer holds: send fewer at once)"
        )

    def _status(self, errors: Sequence[p4runtime_pb2.Error]) -> status_pb2.Status:
        status = status_pb2.Status(code=self.code, message=self.message)
        for error in errors:
            status.details.add().Pack(error)
        return status


def batch_error(what: str, errors: Sequence[p4runtime_pb2.Error]) -> P4RuntimeError:
    """Returns UNKNOWN with one error per element (spec, "Error Reporting" of Write and of Read)."""
    failed = [error for error in errors if error.canonical_code != code_pb2.OK]
    message = f"{what} failed for {len(failed)} of {len(errors)}"
    return P4RuntimeError(code_pb2.UNKNOWN, message, errors)


# Errors of one code each. They take the message.

# The request can never be right, whatever the state of the switch.
invalid_argument = partial(P4RuntimeError, code_pb2.INVALID_ARGUMENT)
# An index or a value lies outside of what the P4 program declares.
out_of_range = partial(P4RuntimeError, code_pb2.OUT_OF_RANGE)
# The entity does not exist.
not_found = partial(P4RuntimeError, code_pb2.NOT_FOUND)
# The entity exists already.
already_exists = partial(P4RuntimeError, code_pb2.ALREADY_EXISTS)
# The client is not the primary, or the P4 program declares the object constant.
permission_denied = partial(P4RuntimeError, code_pb2.PERMISSION_DENIED)
# The switch is not in the state that the request needs.
failed_precondition = partial(P4RuntimeError, code_pb2.FAILED_PRECONDITION)
# A table is full, or there are too many streams.
resource_exhausted = partial(P4RuntimeError, code_pb2.RESOURCE_EXHAUSTED)
# This target does not support it; the message gives the reason.
unimplemented = partial(P4RuntimeError, code_pb2.UNIMPLEMENTED)
# A defect of the switch.
internal = partial(P4RuntimeError, code_pb2.INTERNAL)
