# SPDX-License-Identifier: Apache-2.0
"""The planners of trees by kind. A new one is a file beside `core.py` and a line here."""

from __future__ import annotations

from collections.abc import Callable

from controller.planning.tree import TreeNode
from controller.planning.trees.core import core_alone, core_under_server
from controller.planning.trees.parts import Parts, Ranks
from controller.planning.trees.servers import server_alone, tors_under_server
from controller.planning.trees.two_level import two_level, two_level_under_server
from protocol.trees import TreeKind

# Returns the nodes of one stream, root first, with ids from `first` on: (parts, first, stream,
# servers), the last being the ranks of the stream's servers.
PLANNERS: dict[TreeKind, Callable[[Parts, int, int, Ranks], list[TreeNode]]] = {
    TreeKind.TWO_LEVEL: two_level,
    TreeKind.TOR: tors_under_server,
    TreeKind.CORE: core_alone,
    TreeKind.NONE: server_alone,
    TreeKind.TWO_LEVEL_SERVER: two_level_under_server,
    TreeKind.CORE_SERVER: core_under_server,
}
