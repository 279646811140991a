# SPDX-License-Identifier: Apache-2.0
"""Two veth pairs in a network namespace, for a switch process, and their far ends."""

import contextlib
import os
import socket
import subprocess

from pyroute2 import NetNS, netns

from tests.namespaces import WITHOUT_IPV6

SOL_PACKET, PACKET_IGNORE_OUTGOING = 263, 23


class Wires:
    """The far ends of ports 1 and 2."""

    def __init__(self, stack, space):
        self.ends = {}
        for port in (1, 2):
            netns.pushns(space)
            try:
                end = stack.enter_context(
                    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
                )
            finally:
                netns.popns()
            end.bind((f"h{port}", 0))
            end.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            self.ends[port] = end

    def send(self, port, frame):
        self.ends[port].send(frame)

    def receive(self, port, seconds=60.0):
        """Returns the next frame, or None after the timeout."""
        self.ends[port].settimeout(seconds)
        try:
            return self.ends[port].recv(65536)
        except TimeoutError:
            return None


@contextlib.contextmanager
def wired():
    """Makes sw1-h1 and sw2-h2; yields (command to run another in their namespace, Wires)."""
    space = f"p4rt-test-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        inside = ["ip", "netns", "exec", space]
        with NetNS(space) as made:
            stack.callback(netns.remove, space)
            subprocess.run([*inside, *WITHOUT_IPV6], check=True)
            for port in (1, 2):
                made.link("add", ifname=f"sw{port}", kind="veth", peer=f"h{port}")
                for end in (f"sw{port}", f"h{port}"):
                    made.link("set", index=made.link_lookup(ifname=end)[0], state="up")
        yield inside, Wires(stack, space)
