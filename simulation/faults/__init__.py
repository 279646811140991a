# SPDX-License-Identifier: Apache-2.0
"""Faults in virtual time: slow links and hosts, background traffic, impaired links."""
