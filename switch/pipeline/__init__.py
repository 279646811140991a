# SPDX-License-Identifier: Apache-2.0
"""A running program: its compiled library, and the control plane's access to its state."""

from switch.pipeline.errors import (
    EntryExists,
    EntryIsConstant,
    EntryNotFound,
    PipelineError,
    TableFull,
)
from switch.pipeline.keys import KeyElement, Reference
from switch.pipeline.pipeline import Pipeline

__all__ = [
    "EntryExists",
    "EntryIsConstant",
    "EntryNotFound",
    "KeyElement",
    "Pipeline",
    "PipelineError",
    "Reference",
    "TableFull",
]
