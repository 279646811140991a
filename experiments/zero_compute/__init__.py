# SPDX-License-Identifier: Apache-2.0
"""Experiment: exchanges a second without computing, against the number of workers."""
