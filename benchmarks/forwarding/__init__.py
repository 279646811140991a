# SPDX-License-Identifier: Apache-2.0
"""Benchmark of switches, one core of each: ``rackhub bench switch``.

``sandbox`` is the first process of a sandbox with the links, on which each of ``contenders`` runs
in turn, loaded and counted by ``native.Ends``. ``inprocess`` needs no links.
"""
