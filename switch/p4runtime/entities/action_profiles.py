# SPDX-License-Identifier: Apache-2.0
"""Action profiles and selectors: members, groups, and one-shot action sets of table entries
(P4Runtime spec, "ActionProfileMember & ActionProfileGroup", "One Shot Action Selector
Programming").

A group chooses the member at the position that a packet's hash gives, in an order that the spec
leaves open. It is BMv2's here, so that both choose the same: every member has a number, the lowest
free one when it is created, and one more for each unit of the largest weight that it has in a
group; a group is its members' numbers in rising order.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from switch.p4runtime.entities.checks import Update, check_existence, select
from switch.p4runtime.entities.match import decode_params, encode_action
from switch.p4runtime.errors import (
    failed_precondition,
    invalid_argument,
    not_found,
    resource_exhausted,
    unimplemented,
)
from switch.p4runtime.p4info.schema import Action, ActionProfile, Schema, Table
from switch.p4runtime.stubs import p4runtime_pb2
from switch.pipeline import Pipeline
from switch.pipeline.action_profiles import ProfileState
from switch.pipeline.keys import Reference

MOST_WEIGHTS = 1 << 16  # most members of one group, where the program does not say
MOST_NUMBERS = 1 << 20  # of one profile


@dataclass(frozen=True)
class Target:
    """The member, group or one-shot set that an entry of a table with an action profile refers to.

    set_numbers: of the members that a one-shot set created for itself
    set_size: what it counts of the profile's size
    """

    profile: int
    reference: Reference
    message: p4runtime_pb2.TableAction
    set_numbers: tuple[int, ...] = ()
    set_size: int = 0


@dataclass
class _Member:
    """A member of a profile, and the numbers that it has."""

    id: int
    action: Action
    arguments: tuple[int, ...]
    numbers: list[int]


@dataclass
class _Group:
    """A group. weights: by member id."""

    number: int
    max_size: int
    message: p4runtime_pb2.ActionProfileGroup
    weights: dict[int, int] = field(default_factory=dict)


class _Numbers:
    """Allocates the lowest free number, from 0."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._next = 0

    def take(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._next += 1
        return self._next - 1

    def give(self, number: int) -> None:
        heapq.heappush(self._free, number)

    @property
    def used(self) -> int:
        return self._next - len(self._free)


class _Profile:
    """The members and groups of one profile."""

    def __init__(self, profile: ActionProfile, schema: Schema, pipeline: Pipeline) -> None:
        self.profile = profile
        self.schema = schema
        self.state = ProfileState(pipeline, profile.name)
        self.members: dict[int, _Member] = {}
        self.groups: dict[int, _Group] = {}
        self.entries: Counter[Reference] = Counter()  # that name a member's or group's number
        self.set_size = 0  # of all one-shot sets
        self.numbers, self.group_numbers = _Numbers(), _Numbers()

    # -- members -------------------------------------------------------------------------------

    def write_member(self, kind: int, message: p4runtime_pb2.ActionProfileMember) -> None:
        number = message.member_id
        what = f"{self.profile.name}: member {number}"
        self._check_written(number, "member_id")
        check_existence(kind, number in self.members, what)
        if kind == Update.DELETE:
            self._delete_member(number, what)
            return
        action, arguments = self._action(message.action)
        if kind == Update.INSERT:
            limit = 0 if self.profile.with_selector else self.profile.size
            if limit and len(self.members) >= limit:
                raise resource_exhausted(f"{self.profile.name} is full: size = {limit}")
            self._check_room(1)
            numbers = self._make(action, arguments, 1)
            self.members[number] = _Member(number, action, arguments, numbers)
            return
        member = self.members[number]
        for one in member.numbers:
            self.state.set_member(one, action.name, action.arguments(arguments))
        member.action, member.arguments = action, arguments

    def _delete_member(self, number: int, what: str) -> None:
        groups = [one for one, group in self.groups.items() if number in group.weights]
        if groups:
            raise failed_precondition(f"{what} is in group {groups[0]}")
        [own] = self.members[number].numbers
        if self.entries[Reference(own)]:
            raise failed_precondition(f"{what} is named by an entry of a table")
        self._drop([own])
        del self.members[number]

    def _check_room(self, count: int) -> None:
        if self.numbers.used + count > MOST_NUMBERS:
            raise resource_exhausted(f"{self.profile.name}: more than {MOST_NUMBERS} members")

    def _make(self, action: Action, arguments: tuple[int, ...], count: int) -> list[int]:
        made = [self.numbers.take() for _ in range(count)]
        for i, one in enumerate(made):
            try:
                self.state.set_member(one, action.name, action.arguments(arguments))
            except MemoryError:
                self._drop(made[:i])
                for other in made[i:]:
                    self.numbers.give(other)
                raise
        return made

    def _drop(self, numbers: Iterable[int]) -> None:
        for one in numbers:
            self.state.delete_member(one)
            self.numbers.give(one)

    def _action(self, message: p4runtime_pb2.Action) -> tuple[Action, tuple[int, ...]]:
        number = message.action_id
        if number not in self.profile.actions:
            names = ", ".join(self.schema.actions[one].name for one in self.profile.actions)
            raise invalid_argument(
                f"{self.profile.name} has no action with id {number} (it has: {names})"
            )
        action = self.schema.actions[number]
        return action, decode_params(action, message.params)

    # -- groups --------------------------------------------------------------------------------

    def write_group(self, kind: int, message: p4runtime_pb2.ActionProfileGroup) -> None:
        number = message.group_id
        what = f"{self.profile.name}: group {number}"
        self._check_selector()
        self._check_written(number, "group_id")
        check_existence(kind, number in self.groups, what)
        if kind == Update.DELETE:
            self._delete_group(number, what)
            return
        max_size = message.max_size
        if kind == Update.MODIFY:
            kept = self.groups[number].max_size
            if max_size != kept:
                raise invalid_argument(f"{what}: max_size was {kept} and cannot change")
        elif max_size < 0 or 0 < self.profile.max_group_size < max_size:
            raise invalid_argument(
                f"{what}: max_size {max_size} is not in 0 .. {self.profile.max_group_size}"
            )
        weights = self._weights(message, what)
        own = self.groups[number].weights if number in self.groups else {}
        groups = (list(one.weights.values()) for one in self.groups.values())
        others = sum(map(self._size, groups)) - self._size(list(own.values()))
        self._check_sizes(what, list(weights.values()), max_size, others)
        self._check_room(
            sum(max(0, weight - len(self.members[one].numbers)) for one, weight in weights.items())
        )
        copy = p4runtime_pb2.ActionProfileGroup()
        copy.CopyFrom(message)
        if kind == Update.MODIFY:
            self._set_weights(self.groups[number], weights)
            self.groups[number].message = copy
            return
        group = _Group(self.group_numbers.take(), max_size, copy)
        try:
            self._set_weights(group, weights)
        except MemoryError:
            self.group_numbers.give(group.number)
            raise
        self.groups[number] = group

    def _weights(self, message: p4runtime_pb2.ActionProfileGroup, what: str) -> dict[int, int]:
        weights: dict[int, int] = {}
        for one in message.members:
            _check_watch(one, what)
            if one.weight <= 0:
                raise invalid_argument(f"{what}: the weight of member {one.member_id} is not > 0")
            if one.member_id in weights:
                raise invalid_argument(f"{what}: member {one.member_id} is given twice")
            if one.member_id not in self.members:
                raise not_found(f"{what}: member {one.member_id} does not exist")
            weights[one.member_id] = one.weight
        return weights

    def _size(self, weights: list[int]) -> int:
        return len(weights) if self.profile.most_weight else sum(weights)

    def _check_sizes(self, what: str, weights: list[int], max_size: int, others: int) -> None:
        """Checks a group's own bound, and the profile's bound on all groups."""
        profile, size = self.profile, self._size(weights)
        if profile.most_weight and max(weights, default=0) > profile.most_weight:
            raise invalid_argument(f"{what}: a weight is above {profile.most_weight}")
        bound = max_size or profile.max_group_size or MOST_WEIGHTS
        if size > bound:
            raise resource_exhausted(f"{what}: its size is {size}, more than {bound}")
        if profile.size and size + others > profile.size:
            raise resource_exhausted(
                f"{what}: the size of all groups of {profile.name} would be {size + others}, more "
                f"than {profile.size}"
            )

    def _set_weights(self, group: _Group, weights: dict[int, int]) -> None:
        touched = sorted({*group.weights, *weights})
        try:
            for number in sorted(weights):
                member = self.members[number]
                missing = weights[number] - len(member.numbers)
                if missing > 0:
                    member.numbers += self._make(member.action, member.arguments, missing)
            listed = sorted(
                one
                for number, weight in weights.items()
                for one in self.members[number].numbers[:weight]
            )
            self.state.set_group(group.number, listed)
            group.weights = weights
        finally:
            self._shrink(touched, group)

    def _shrink(self, numbers: Iterable[int], *new: _Group) -> None:
        """Frees numbers that no group's weight needs any more. new: a group that may not be listed
        yet."""
        for number in numbers:
            member = self.members[number]
            groups = (*self.groups.values(), *new)
            most = max([1, *(one.weights.get(number, 0) for one in groups)])
            member.numbers, spare = member.numbers[:most], member.numbers[most:]
            self._drop(reversed(spare))

    def _delete_group(self, number: int, what: str) -> None:
        group = self.groups[number]
        if self.entries[Reference(group.number, group=True)]:
            raise failed_precondition(f"{what} is named by an entry of a table")
        del self.groups[number]
        self.state.delete_group(group.number)
        self.group_numbers.give(group.number)
        self._shrink(sorted(group.weights))

    # -- entries of tables ---------------------------------------------------------------------

    def take(
        self, table: Table, message: p4runtime_pb2.TableAction, replaced: Target | None
    ) -> Target:
        kind = message.WhichOneof("type")
        if kind == "action_profile_action_set":
            others = self.set_size - (replaced.set_size if replaced is not None else 0)
            return self._take_set(table, message.action_profile_action_set, others)
        if kind == "action_profile_member_id":
            member = self.members.get(message.action_profile_member_id)
            if member is None:
                raise not_found(
                    f"{self.profile.name}: member {message.action_profile_member_id} does not exist"
                )
            reference = Reference(member.numbers[0])
        elif kind == "action_profile_group_id":
            self._check_selector()
            group = self.groups.get(message.action_profile_group_id)
            if group is None:
                raise not_found(
                    f"{self.profile.name}: group {message.action_profile_group_id} does not exist"
                )
            reference = Reference(group.number, group=True)
        else:
            raise invalid_argument(
                f"{table.name} has an action profile: entries name a member, a group or an action "
                f"set, not {kind or 'an unset one'}"
            )
        self.entries[reference] += 1
        kept = p4runtime_pb2.TableAction()
        kept.CopyFrom(message)
        return Target(self.profile.id, reference, kept)

    def _take_set(
        self, table: Table, message: p4runtime_pb2.ActionProfileActionSet, others: int
    ) -> Target:
        """Creates a one-shot set. others: the size of all sets that will exist beside it."""
        self._check_selector()
        if self.members or self.groups:
            raise invalid_argument(
                f"{self.profile.name} has members and groups of its own: they and action sets do "
                f"not go together"
            )
        if not len(message.action_profile_actions):
            raise invalid_argument(f"{table.name}: the action set is empty")
        kept = p4runtime_pb2.TableAction()
        chosen, weights = [], []
        for one in message.action_profile_actions:
            _check_watch(one, table.name)
            if one.weight <= 0:
                raise invalid_argument(f"{table.name}: a weight of the action set is not > 0")
            action, arguments = self._action(one.action)
            chosen.append((action, arguments, one.weight))
            weights.append(one.weight)
            stored = kept.action_profile_action_set.action_profile_actions.add(weight=one.weight)
            stored.action.CopyFrom(encode_action(action, arguments).action)
        what, most = f"{table.name}: the action set", self.profile.max_group_size
        if 0 < most < self._size(weights):
            raise invalid_argument(f"{what} has size {self._size(weights)}, more than {most}")
        self._check_sizes(what, weights, 0, others)
        self._check_room(sum(weights))
        numbers: list[int] = []
        group = self.group_numbers.take()
        try:
            for action, arguments, weight in chosen:
                numbers += self._make(action, arguments, weight)
            self.state.set_group(group, sorted(numbers))
        except MemoryError:
            self._drop(numbers)
            self.group_numbers.give(group)
            raise
        size = self._size(weights)
        self.set_size += size
        return Target(self.profile.id, Reference(group, group=True), kept, tuple(numbers), size)

    def release(self, target: Target) -> None:
        if not target.set_numbers:
            self.entries[target.reference] -= 1
            return
        self.state.delete_group(target.reference.number)
        self.group_numbers.give(target.reference.number)
        self._drop(target.set_numbers)
        self.set_size -= target.set_size

    # -- checks --------------------------------------------------------------------------------

    def _check_selector(self) -> None:
        if not self.profile.with_selector:
            raise invalid_argument(f"{self.profile.name} has no selector, so no groups")

    def _check_written(self, number: int, what: str) -> None:
        if number == 0:
            raise invalid_argument(f"{self.profile.name}: {what} is not set (0 is none)")
        if self.set_size:
            raise invalid_argument(
                f"{self.profile.name}: entries have action sets of their own: they and members do "
                f"not go together"
            )


class Profiles:
    """The action profiles of one program. Not thread safe: the device has a lock."""

    def __init__(self, schema: Schema, pipeline: Pipeline) -> None:
        self._schema = schema
        self._profiles = {
            number: _Profile(profile, schema, pipeline)
            for number, profile in schema.profiles.items()
        }

    def write_member(self, kind: int, message: p4runtime_pb2.ActionProfileMember) -> None:
        """Applies one update. Raises P4RuntimeError with the code of the spec."""
        self._of(message.action_profile_id).write_member(kind, message)

    def write_group(self, kind: int, message: p4runtime_pb2.ActionProfileGroup) -> None:
        """Applies one update. Raises P4RuntimeError with the code of the spec."""
        self._of(message.action_profile_id).write_group(kind, message)

    def read_member(
        self, query: p4runtime_pb2.ActionProfileMember
    ) -> Iterator[p4runtime_pb2.ActionProfileMember]:
        """Yields one member, all of a profile (member_id 0), or all (action_profile_id 0)."""
        for one in self._asked(query.action_profile_id, query.member_id):
            # In the order of creation: recreated in this order, groups choose alike.
            members = sorted(one.members.values(), key=lambda member: member.numbers[0])
            by_id = {member.id: member for member in members}
            for member in select(by_id, query.member_id, f"{one.profile.name}: member"):
                yield p4runtime_pb2.ActionProfileMember(
                    action_profile_id=one.profile.id,
                    member_id=member.id,
                    action=encode_action(member.action, member.arguments).action,
                )

    def read_group(
        self, query: p4runtime_pb2.ActionProfileGroup
    ) -> Iterator[p4runtime_pb2.ActionProfileGroup]:
        """Yields one group, all of a profile (group_id 0), or all (action_profile_id 0)."""
        for one in self._asked(query.action_profile_id, query.group_id):
            for group in select(one.groups, query.group_id, f"{one.profile.name}: group"):
                yield group.message

    def take(
        self,
        table: Table,
        message: p4runtime_pb2.TableAction,
        replaced: Target | None = None,
    ) -> Target:
        """Acquires what an entry refers to until `release`.

        replaced: what the entry refers to now and releases next.
        """
        return self._of(table.action_profile).take(table, message, replaced)

    def release(self, target: Target) -> None:
        self._profiles[target.profile].release(target)

    def _of(self, number: int) -> _Profile:
        return self._profiles[self._schema.profile(number).id]

    def _asked(self, profile: int, number: int) -> list[_Profile]:
        if profile:
            return [self._of(profile)]
        if number:
            raise invalid_argument("reading all action profiles takes no other filter")
        return list(self._profiles.values())


def _check_watch(
    one: p4runtime_pb2.ActionProfileGroup.Member | p4runtime_pb2.ActionProfileAction, what: str
) -> None:
    if one.watch_port or one.watch:
        raise unimplemented(
            f"{what}: this target does not watch ports; leave watch_port out, and take a member "
            f"out of the group when its port goes down"
        )
