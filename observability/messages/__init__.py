# SPDX-License-Identifier: Apache-2.0
"""Types of the JSON objects that runs write and processes exchange, one module per subject.

They are TypedDicts: the objects are passed on as they are. Docstrings below fields become the
reference (``scripts/summary_reference.py``), so they state units and when a value is null.
"""
