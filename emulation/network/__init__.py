# SPDX-License-Identifier: Apache-2.0
"""Links, hosts and namespaces that a testbed is made of, and what went over them."""
