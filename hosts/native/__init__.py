# SPDX-License-Identifier: Apache-2.0
"""C code of hosts, and its loader."""
