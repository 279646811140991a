# SPDX-License-Identifier: Apache-2.0
"""A table entry, both as controllers wrote it and as the pipeline has it."""

from __future__ import annotations

from dataclasses import dataclass

from switch.p4runtime.entities.action_profiles import Target
from switch.p4runtime.entities.match import Key
from switch.p4runtime.p4info.schema import Action
from switch.pipeline.keys import Reference


@dataclass
class Entry:
    """A table entry.

    action: None in the program's own default entry if the P4Info does not declare that action
    target: what it refers to instead of an action, in a table with an action profile
    """

    action: Action | None
    arguments: tuple[int, ...]
    key: Key = ()
    priority: int = 0
    handle: int | None = None  # None: of the default entry
    is_const: bool = False
    controller_metadata: int = 0
    metadata: bytes = b""
    idle_timeout_ns: int = 0
    timer: int = 0  # of Ageing
    target: Target | None = None

    @property
    def pipeline_action(self) -> str | Reference:
        """The action, or the reference, that the pipeline takes."""
        if self.target is not None:
            return self.target.reference
        assert self.action is not None
        return self.action.name

    @property
    def pipeline_arguments(self) -> tuple[int, ...]:
        """The arguments of the program's action."""
        return () if self.action is None else self.action.arguments(self.arguments)

    @property
    def pipeline_handle(self) -> int:
        """The handle of an entry that is not the default one."""
        if self.handle is None:
            raise AssertionError("the default entry has no handle")
        return self.handle
