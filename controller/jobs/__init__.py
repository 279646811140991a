# SPDX-License-Identifier: Apache-2.0
"""Jobs from admission to their end: members, epochs, departures, the journal."""
