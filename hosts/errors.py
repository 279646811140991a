# SPDX-License-Identifier: Apache-2.0
"""Errors of the client and of members of a job.

All are `ClientError`s. Mistakes of the caller are also Python's own error for them (KeyError,
TypeError, ValueError, RuntimeError), so that either may be caught; the job continues after them.
"""

from __future__ import annotations

from protocol.call_status import LOST, REPLACED
from protocol.errors import Error


class ClientError(Error):
    """Base of all errors; subclasses name the cause."""


class ServiceUnavailableError(ClientError):
    """The job service is absent, or does not answer for longer than the client's `outage`."""


class WrongNonceError(ClientError):
    """The job service does not know the nonce, or not for this rank."""


class JobRefusedError(ClientError):
    """The job service refuses the job or a call, such as a rank that the job does not have.

    The text gives its reason.
    """


class NamespaceTakenError(JobRefusedError):
    """A job of that name is alive."""


class NoRoomError(JobRefusedError):
    """Switches have no slots, or the service no room; the text says where, and what would fit."""


class PlanWithdrawnError(ClientError):
    """The job ended, or its plan was replaced, while this member was still in it; the text says
    why."""


class LeftBehindError(PlanWithdrawnError):
    """The job continues without this member, whose lease ended, which did not do its part, or in
    whose place is another process.

    replaced: true for the last.
    """

    def __init__(self, text: str, mark: str = LOST) -> None:
        super().__init__(text)
        self.replaced = mark == REPLACED


class StalledError(ClientError):
    """No sum arrived within this worker's `patience`; it can only leave."""


class UseAfterLeaveError(ClientError):
    """A call after `leave`, or a push that `leave` did not wait for.

    `statistics`, `epoch`, `world`, `job`, `rank`, `joined` and `restored` stay readable.
    """


class CallOrderError(ClientError, RuntimeError):
    """A call before the one that it needs, or in a future's callback."""


class DoubleInitError(CallOrderError):
    """A second call of `connect_service` or `init_service`."""


class CheckpointError(ClientError):
    """A checkpoint that cannot be written, or is not of such a job; the text names the file and the
    reason."""


class UnknownKeyError(ClientError, KeyError):
    """A key that was not declared, or an optimizer option that fits no declared key."""

    # KeyError shows its argument's repr.
    __str__ = Exception.__str__


class NoValueError(ClientError, LookupError):
    """A key that was pulled before it was ever pushed."""


class WrongShapeError(ClientError, ValueError):
    """Values whose shape differs from the key's, or an array for sums whose shape differs from
    theirs."""


class WrongTypeError(ClientError, TypeError):
    """Values that are no array, or of a dtype that is not summed; or an array for sums that is not
    float32, contiguous and writeable."""


class PriorityError(ClientError, ValueError):
    """A priority that the job does not have, or another than that of the key's earlier pushes."""


class TooLargeError(ClientError, OverflowError):
    """Finite values of float64 beyond the range of float32, in which they would be infinite."""


class PolicyError(ClientError):
    """A chunk scheduler or congestion window failed, or returned what it must not."""
