# SPDX-License-Identifier: Apache-2.0
"""Closed forms: what a job puts on each link, and how long it takes."""
