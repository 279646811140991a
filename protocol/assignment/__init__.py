# SPDX-License-Identifier: Apache-2.0
"""Rules that assign slices of keys to servers."""
