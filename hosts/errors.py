# SPDX-License-Identifier: Apache-2.0
"""Errors of the client and of members of a job.

All are `ClientError`s. Mistakes of the caller are also Python's own error for them (KeyError,
TypeError, ValueError, RuntimeError), so that either may be caught; they do no harm, and the job
goes on.
"""

from __future__ import annotations


class ClientError(Exception):
    """Base of all errors; subclasses name the cause."""


class ServiceUnavailableError(ClientError):
    """The job service is absent, went away or does not answer."""


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
    """The job goes on without this member, whose lease ended or which did not do its part."""


class StalledError(ClientError):
    """No sum arrived within this worker's patience."""


class UseAfterLeaveError(ClientError):
    """A call after `leave`, or interrupted by it."""


class CallOrderError(ClientError, RuntimeError):
    """A call out of order, or in a thread that must not make it."""


class DoubleInitError(CallOrderError):
    """A second call of `connect_service` or `init_service`."""


class CheckpointError(ClientError):
    """A checkpoint that cannot be written or used; the text names the file and the reason."""


class UnknownKeyError(ClientError, KeyError):
    """A key that was not declared, or an optimizer option that fits no declared key."""

    # KeyError shows its argument's repr.
    __str__ = Exception.__str__


class NoValueError(ClientError, LookupError):
    """A key that was pulled before it was ever pushed."""


class WrongShapeError(ClientError, ValueError):
    """Values whose shape differs from the key's."""


class WrongTypeError(ClientError, TypeError):
    """Values that are no array, or whose dtype differs from the key's."""
