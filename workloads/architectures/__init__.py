# SPDX-License-Identifier: Apache-2.0
"""Published networks: their parameters and forward multiplications, by the name of job files."""
