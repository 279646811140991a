# SPDX-License-Identifier: Apache-2.0
"""Generates the C source that runtime/program.h asks for from a P4 program.

`layout` places everything in memory, `limbs` represents wide values; `expressions` (on `wide`),
`bits`, `calculations` and `primitives` write statements, `fused` runs of them; `parser`, `controls`
and `source` put them together.
"""

from switch.codegen.source import generate

__all__ = ["generate"]
