# SPDX-License-Identifier: Apache-2.0
"""What sums in the network are compared with: all-reduce among workers, and parameter servers."""
