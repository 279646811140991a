# SPDX-License-Identifier: Apache-2.0
"""Writes members and groups of action profiles.

A member is an action with arguments, a group a list of members from which the hash of a packet's
selector fields chooses. The caller numbers both, from 0.

    members = ProfileState(pipeline, "Ingress.next_hops")
    members.set_member(0, "Ingress.forward", [3])
    members.set_group(0, [0, 1, 1])
    pipeline.insert("Ingress.routes", [(0x0A000000, 8)], Reference(0, group=True))
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from switch.pipeline.keys import c_words, pack_arguments
from switch.pipeline.pipeline import Pipeline


class ProfileState:
    """Members and groups of one profile. An entry that refers to a deleted one does nothing;
    counting references is up to the caller."""

    def __init__(self, pipeline: Pipeline, name: str) -> None:
        """Raises KeyError if the program has no such profile."""
        self._pipeline = pipeline
        self._name = name
        self._index = pipeline.layout.profile_index[name]
        self._words = pipeline.layout.profile_words[name]
        actions = pipeline.program.profile_actions(name)
        # Tables have equal copies of an action of one name.
        self._actions = {one.name: one for one in actions}

    def set_member(self, number: int, action: str, args: Sequence[int] = ()) -> None:
        """Adds or replaces a member. Raises KeyError, ValueError, MemoryError."""
        if action not in self._actions:
            names = ", ".join(sorted(self._actions)) or "none"
            raise KeyError(f"profile '{self._name}' has no action '{action}'; it has: {names}")
        chosen = self._actions[action]
        words = pack_arguments(chosen, self._words, args)
        result = self._pipeline.native.sw_member_set(
            self._pipeline.handle,
            self._index,
            number,
            self._pipeline.layout.member_actions[self._name][action],
            c_words(words),
        )
        self._raise_for(result, f"member {number}")

    def delete_member(self, number: int) -> None:
        """Deletes a member. Raises KeyError if it does not exist."""
        result = self._pipeline.native.sw_member_delete(self._pipeline.handle, self._index, number)
        self._raise_for(result, f"member {number}")

    def set_group(self, number: int, members: Sequence[int]) -> None:
        """Adds or replaces a group; it may contain a member repeatedly. Raises ValueError,
        MemoryError."""
        result = self._pipeline.native.sw_choices_set(
            self._pipeline.handle,
            self._index,
            number,
            (ctypes.c_uint32 * max(len(members), 1))(*members),
            len(members),
        )
        self._raise_for(result, f"group {number}")

    def delete_group(self, number: int) -> None:
        """Deletes a group. Raises KeyError if it does not exist."""
        result = self._pipeline.native.sw_choices_delete(self._pipeline.handle, self._index, number)
        self._raise_for(result, f"group {number}")

    def _raise_for(self, result: int, what: str) -> None:
        self._pipeline.raise_for(result, f"{what} of profile '{self._name}'")
