# SPDX-License-Identifier: Apache-2.0
"""Experiment: compares the analytic model of `rackhub plan` with runs in virtual time."""
