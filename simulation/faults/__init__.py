# SPDX-License-Identifier: Apache-2.0
"""Faults in virtual time: killed, stopped and cut-off nodes, slow links and hosts, background
traffic, impaired links."""
