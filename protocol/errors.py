# SPDX-License-Identifier: Apache-2.0
"""The base of all errors whose text is meant for users."""

from __future__ import annotations


class Error(Exception):
    """Base of all errors with a text for users, which says what is wrong and where; ``rackhub``
    prints it, and ends with the error's ``status``, 1 by default."""
