# SPDX-License-Identifier: Apache-2.0
"""A P4 program -> the C source that runtime/program.h asks for.

`layout` says where everything lies in memory, `limbs` how wide values are held; `expressions` (on
`wide`), `bits`, `calculations` and `primitives` write statements, `fused` runs of them; `parser`,
`controls` and `source` put them together.
"""

from switch.codegen.source import generate

__all__ = ["generate"]
