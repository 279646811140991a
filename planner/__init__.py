# SPDX-License-Identifier: Apache-2.0
"""Closed-form models of a job's load on each link and of its iteration time."""
