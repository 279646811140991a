# SPDX-License-Identifier: Apache-2.0
"""What keeps a worker or server from its job, and what a call may be wrong about.

All of it is a `ClientError`. What is a mistake of the caller's is also Python's own error for it
(KeyError, TypeError, ValueError, RuntimeError), so that either may be caught; it harms nothing, and
the job goes on.
"""

from __future__ import annotations


class ClientError(Exception):
    """Anything that keeps a member from its job; the subclasses say what."""


class ServiceUnavailableError(ClientError):
    """The job service is not there, went away or does not answer."""


class WrongNonceError(ClientError):
    """The job service does not know the nonce, or not for this rank."""


class JobRefusedError(ClientError):
    """The job service refuses the job or a call; the text gives its reason."""


class NamespaceTakenError(JobRefusedError):
    """Another service of that namespace is alive."""


class NoRoomError(JobRefusedError):
    """The job service has no room; the text says where, and what would fit."""


class PlanWithdrawnError(ClientError):
    """The job ended, or its plan was replaced, while this member was still in it."""


class LeftBehindError(PlanWithdrawnError):
    """The job goes on without this member, which was not heard of, or did not do its part."""


class StalledError(ClientError):
    """No sum came for longer than this worker's patience."""


class UseAfterLeaveError(ClientError):
    """A call after `leave`, or one that `leave` cut off."""


class CallOrderError(ClientError, RuntimeError):
    """A call that another one has to come before, or must not be made there."""


class DoubleInitError(CallOrderError):
    """`connect_service` or `init_service` a second time."""


class CheckpointError(ClientError):
    """A checkpoint that cannot be written or used; the text says which file and why."""


class UnknownKeyError(ClientError, KeyError):
    """A key that `init_service` did not name, or an optimizer's option that fits none of those."""

    # KeyError shows its argument's repr.
    __str__ = Exception.__str__


class NoValueError(ClientError, LookupError):
    """A key whose values are asked for before it was ever pushed."""


class WrongShapeError(ClientError, ValueError):
    """Values of another shape than the key's."""


class WrongTypeError(ClientError, TypeError):
    """Values that are no array, or of another dtype than the key's."""
