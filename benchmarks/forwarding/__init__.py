# SPDX-License-Identifier: Apache-2.0
"""What switches forward on this machine, one core of them: ``rackhub bench switch``.

``inside`` is the first process of a sandbox that has the links; ``contenders`` are put on them one
after the other, each loaded and counted by ``ends``. ``inprocess`` needs no links.
"""
