# SPDX-License-Identifier: Apache-2.0
"""Load balancers: policies that move the load of running jobs."""
