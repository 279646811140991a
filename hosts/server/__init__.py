# SPDX-License-Identifier: Apache-2.0
"""The parameter server: ``python -m hosts.server``."""
