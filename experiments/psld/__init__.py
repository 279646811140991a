# SPDX-License-Identifier: Apache-2.0
"""Experiment: PSLD, load moved away from servers that straggle while training goes on."""
