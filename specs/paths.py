# SPDX-License-Identifier: Apache-2.0
"""Paths of the project's own files."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
