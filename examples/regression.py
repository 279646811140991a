# SPDX-License-Identifier: Apache-2.0
"""A training of your own on a testbed that is up: linear regression, a process on each host.

    rackhub up topologies/two-racks.yaml
    umask 077  # who can read job.json may be in the job
    rackhub exec w0 python examples/regression.py create w0 w1 w4 w5 > job.json
    for host in w0 w1 w4 w5; do
        rackhub exec $host python examples/regression.py train < job.json &
    done; wait
    rackhub down

Each worker has data of its own, and takes steps with the mean of all workers' gradients, which the
switches sum. See docs/howto/use-the-api.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from hosts.client import Client

FEATURES, EXAMPLES = 300, 200  # of each worker
RATE = 0.5
TRUTH = np.linspace(-1, 1, FEATURES, dtype=np.float32)

Floats = npt.NDArray[np.float32]


def data(rank: int) -> tuple[Floats, Floats]:
    """A worker's examples: inputs, and what to predict from them."""
    random = np.random.default_rng(rank)
    inputs = random.standard_normal((EXAMPLES, FEATURES), np.float32)
    return inputs, inputs @ TRUTH + 0.01 * random.standard_normal(EXAMPLES, np.float32)


def create(options: argparse.Namespace) -> None:
    """Makes the job, and prints what its workers have to know."""
    # None: the job service of the testbed that this runs on.
    job = Client.create_service(
        None, "regression", options.workers, options.servers, tree=options.tree
    )
    started = {"nonce": job.nonce, "workers": options.workers, "steps": options.steps}
    print(json.dumps(started))


def train(job: dict[str, Any], file: str | None) -> None:
    """Is the worker of this host."""
    host = os.environ["RACKHUB_HOST"]
    rank = job["workers"].index(host)
    inputs, targets = data(rank)
    weights = np.zeros(FEATURES, np.float32)
    with Client() as client:
        client.connect_service(job["nonce"], rank)
        client.init_service({"weights": FEATURES})
        for _ in range(job["steps"]):
            gradient = inputs.T @ (inputs @ weights - targets) / EXAMPLES
            means = client.push_pull({"weights": gradient}, average=True)
            weights -= RATE * means["weights"]
    print(f"{host}: off by {np.abs(weights - TRUTH).max():.4f} after {job['steps']} steps")
    if file is not None:
        np.save(file, weights)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Linear regression on a testbed that is up.")
    commands = parser.add_subparsers(dest="command", required=True)
    starter = commands.add_parser("create", help="make the job; prints it, with its nonce")
    starter.add_argument("workers", nargs="+", metavar="WORKER", help="hosts: w0 w1 ..")
    starter.add_argument("--servers", nargs="+", default=["s0"], metavar="SERVER")
    starter.add_argument("--tree", default="two-level")
    starter.add_argument("--steps", type=int, default=100)
    worker = commands.add_parser("train", help="be a worker; reads the job from standard input")
    worker.add_argument("--save", metavar="FILE", help="for its weights, as numpy has them")
    options = parser.parse_args()
    if options.command == "create":
        create(options)
    else:
        train(json.load(sys.stdin), options.save)


if __name__ == "__main__":
    main()
