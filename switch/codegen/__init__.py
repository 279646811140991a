# SPDX-License-Identifier: Apache-2.0
"""Generates the C source that runtime/program.h asks for from a P4 program.

`usage` finds what can be left out (from `accesses`, `definite_assignment`, `known_conditions`).
`layout` places everything in memory, `limbs` represents wide values. `expressions`, `bits`,
`hashes_and_checksums` and `primitives` write statements, `loop_fusion` runs of them; `parser`,
`controls` and `source` put them together, and `cached` keeps the result.
"""

from switch.codegen.cached import cached_source
from switch.codegen.source import generate

__all__ = ["cached_source", "generate"]
