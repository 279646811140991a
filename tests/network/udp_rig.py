# SPDX-License-Identifier: Apache-2.0
"""A shaped veth between two network namespaces with an Endpoint at each end.

`python udp_rig.py OPTIONS-AS-JSON` has to be in a network namespace of its own; it makes the other
one, sends, and prints what happened as JSON.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from emulation.network.shaping import shape_by_priority
from hosts.net.offload import PLAIN
from hosts.net.udp import Endpoint
from protocol.header import Batch, Op, blank, peer_array
from protocol.priorities import stream_number
from topologies.model.topology import LinkQuality

NEAR, FAR, PORT = "10.9.0.1", "10.9.0.2", 47110
SILENCE = 1.0  # s without a packet, once all are sent, after which the rest is taken for lost


def ip(*arguments: str, inside: int | None = None) -> None:
    """`ip` (or `tc`, `ethtool`) here or in the namespaces of a process."""
    prefix = ["nsenter", "-t", str(inside), "-n"] if inside is not None else []
    subprocess.run([*prefix, *arguments], check=True, stdout=subprocess.DEVNULL)


def connect(receiver: int, options: dict[str, Any]) -> None:
    """The veth, with the queue of the sending end as a testbed's hosts have it."""
    mtu = str(options.get("mtu", 1500))
    ip("ip", "link", "add", "near", "mtu", mtu, "type", "veth", "peer", "name", "far", "mtu", mtu,
       "netns", str(receiver))  # fmt: skip
    ends = (
        ("near", NEAR, "02:00:00:00:00:01", None),
        ("far", FAR, "02:00:00:00:00:02", receiver),
    )
    for name, address, mac, inside in ends:
        ip("ip", "link", "set", name, "address", mac, inside=inside)
        ip("ip", "address", "add", f"{address}/24", "dev", name, inside=inside)
        ip("ip", "link", "set", name, "up", inside=inside)
    # Known beforehand, as on a testbed: what waits for an address to be resolved may be dropped
    # (arp(7), unres_qlen).
    for (name, _, _, inside), (_, address, mac, _) in zip(ends, reversed(ends), strict=True):
        ip("ip", "neighbour", "add", address, "lladdr", mac, "dev", name, inside=inside)
    if "classes" in options:  # as in the middle of a link of BMv2
        quality = LinkQuality(rate=options["rate"], queue_bytes=options["queue"], mtu=int(mtu))
        for line in shape_by_priority("near", quality):
            ip(*line.split())
    elif "rate" in options:
        ip("tc", "qdisc", "add", "dev", "near", "root", "handle", "1:", "htb", "default", "1")
        ip("tc", "class", "add", "dev", "near", "parent", "1:", "classid", "1:1", "htb", "rate",
           str(options["rate"]), "burst", "3000", "cburst", "3000", "quantum", "60000")  # fmt: skip
        ip("tc", "qdisc", "add", "dev", "near", "parent", "1:1", "bfifo", "limit",
           str(options["queue"]))  # fmt: skip
    if options.get("checksums") == "off":
        ip("ethtool", "-K", "near", "tx", "off")


def dropped() -> int:
    shown = subprocess.run(
        ["tc", "-s", "qdisc", "show", "dev", "near"], check=True, capture_output=True, text=True
    ).stdout
    return sum(int(count) for count in re.findall(r"dropped (\d+)", shown))


def send(options: dict[str, Any]) -> None:
    lanes, count = options.get("lanes", 256), options["count"]
    receiver = subprocess.Popen(
        ["unshare", "-n", sys.executable, __file__, "receive", str(lanes), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    receiver.stdout.readline()  # it is in its namespace
    connect(receiver.pid, options)
    receiver.stdin.write("bind\n")
    receiver.stdin.flush()
    receiver.stdout.readline()  # it listens
    lazy, urgent = count - options.get("urgent", 0), options.get("urgent", 0)
    batch = packets(lanes, stream_number(0, 0), np.arange(lazy))
    report: dict[str, Any] = {}
    with Endpoint(
        (NEAR, 0),
        lanes=lanes,
        link_rate=options.get("rate", 0),
        queue_bytes=options.get("queue_bytes"),
        offload=PLAIN if options.get("plain") else None,
    ) as endpoint:
        try:
            by_priority = urgent > 0 and "classes" not in options
            endpoint.configure(lanes, options.get("rate", 0), by_priority=by_priority)
            endpoint.send(batch)
            report["sent_before"] = endpoint.counters.sent
            if urgent:
                endpoint.send(packets(lanes, stream_number(7, 0), np.arange(lazy, count)))
            while not endpoint.flush():
                endpoint.wait(5)
        except OSError as error:
            report["error"] = str(error)
        receiver.stdin.write("sent\n")
        receiver.stdin.flush()
        report |= {
            "received": json.loads(receiver.stdout.readline()),
            "dropped": dropped(),
            "counters": asdict(endpoint.counters),
            "offload": asdict(endpoint.offload),
        }
    receiver.communicate()
    print(json.dumps(report))


def packets(lanes: int, stream: int, seqs: np.ndarray) -> Batch:
    headers = blank(len(seqs), Op.CONTRIBUTE)
    headers["lanes"], headers["stream"], headers["seq"] = lanes, stream, seqs
    payloads = np.zeros((len(seqs), lanes), ">i4")
    peers = peer_array([(0x0A090002, PORT)] * len(seqs))
    return Batch(headers, payloads, np.ones(len(seqs), np.bool_), peers)


def receive(lanes: int, count: int) -> None:
    print("in", flush=True)
    sys.stdin.readline()
    with Endpoint((FAR, PORT), lanes=lanes) as endpoint:
        print("listening", flush=True)
        all_sent = threading.Event()

        def listen() -> None:
            sys.stdin.readline()
            all_sent.set()

        threading.Thread(target=listen).start()
        seqs: list[int] = []
        while len(seqs) < count:
            batch = endpoint.receive()
            if batch is None:
                last = all_sent.is_set()
                endpoint.wait(SILENCE)
                batch = endpoint.receive()
                if batch is None and last:
                    break
            if batch is not None:
                seqs += batch.headers["seq"].tolist()
        all_sent.wait()
    print(json.dumps(seqs), flush=True)
    sys.stdin.read()  # the link goes with this process; its counters are still to be read


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(int(sys.argv[2]), int(sys.argv[3]))
    else:
        send(json.loads(sys.argv[1]))
