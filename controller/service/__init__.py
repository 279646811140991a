# SPDX-License-Identifier: Apache-2.0
"""The job service: its gRPC calls, orders of an operator, the switches' monitor."""
