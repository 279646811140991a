# SPDX-License-Identifier: Apache-2.0
"""Checks that requests for several kinds of entities share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from switch.p4runtime.errors import already_exists, invalid_argument, not_found
from switch.p4runtime.p4info.schema import Field
from switch.p4runtime.stubs import p4runtime_pb2

Update = p4runtime_pb2.Update

T = TypeVar("T")
F = TypeVar("F", bound=Field)


def check_existence(kind: int, exists: bool, what: str) -> None:
    """Raises ALREADY_EXISTS for the insertion of what exists, else NOT_FOUND unless it does."""
    if kind == Update.INSERT and exists:
        raise already_exists(f"{what} exists")
    if kind != Update.INSERT and not exists:
        raise not_found(f"{what} does not exist")


def check_modifies(kind: int, name: str, what: str) -> None:
    """Raises INVALID_ARGUMENT for updates of an entity that always exists, other than MODIFY."""
    if kind != Update.MODIFY:
        raise invalid_argument(f"{name}: a {what} can only be modified")


def select(entries: Mapping[int, T], wanted: int, what: str) -> list[T]:
    """Returns the entry with an id, or all (0). Raises NOT_FOUND."""
    if wanted == 0:
        return list(entries.values())
    if wanted not in entries:
        raise not_found(f"{what} {wanted} does not exist")
    return [entries[wanted]]


def by_id(
    owner: str, what: str, id_name: str, messages: Iterable[Any], declared: Sequence[F]
) -> Iterator[tuple[F, Any]]:
    """Yields each declared field with the message for it, None without one.

    Raises INVALID_ARGUMENT for an id that is given twice or not declared.
    """
    given: dict[int, Any] = {}
    for message in messages:
        number = getattr(message, id_name)
        if number in given:
            raise invalid_argument(f"{owner}: {id_name} {number} is given twice")
        given[number] = message
    for one in declared:
        yield one, given.pop(one.id, None)
    if given:
        known = ", ".join(f"{one.id} {one.name}" for one in declared) or "none"
        raise invalid_argument(
            f"{owner}: no {what} with {id_name} {', '.join(map(str, given))} (it has: {known})"
        )
