# SPDX-License-Identifier: Apache-2.0
"""Experiment: PHub's chunk size, and what each part of its design gives."""
