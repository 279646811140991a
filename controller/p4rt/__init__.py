# SPDX-License-Identifier: Apache-2.0
"""P4Runtime as a client: connections, entries, and what is installed at switches."""
