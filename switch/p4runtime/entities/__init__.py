# SPDX-License-Identifier: Apache-2.0
"""The entities that controllers write and read, one module for each kind."""
