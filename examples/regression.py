# SPDX-License-Identifier: Apache-2.0
"""A training of your own: linear regression, a process on each host.

    rackhub launch topologies/two-racks.yaml -n 8 examples/regression.py

Each worker has data of its own, and takes steps with the mean of all workers' gradients, which the
switches sum. See docs/howto/use-the-api.md.
"""

from __future__ import annotations

import argparse

import numpy as np
import numpy.typing as npt

from rackhub import Client

FEATURES, EXAMPLES = 300, 200  # of each worker
RATE = 0.5
TRUTH = np.linspace(-1, 1, FEATURES, dtype=np.float32)

Floats = npt.NDArray[np.float32]


def data(rank: int) -> tuple[Floats, Floats]:
    """A worker's examples: inputs, and what to predict from them."""
    random = np.random.default_rng(rank)
    inputs = random.standard_normal((EXAMPLES, FEATURES), np.float32)
    return inputs, inputs @ TRUTH + 0.01 * random.standard_normal(EXAMPLES, np.float32)


def train(steps: int) -> Floats:
    """Is one worker; returns the weights."""
    weights = np.zeros(FEATURES, np.float32)
    with Client() as client:
        client.connect_service()
        client.init_service({"weights": FEATURES})
        inputs, targets = data(client.rank)
        for _ in range(steps):
            gradient = inputs.T @ (inputs @ weights - targets) / EXAMPLES
            means = client.push_pull({"weights": gradient.astype(np.float32)}, average=True)
            weights -= RATE * means["weights"]
    return weights


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Linear regression; `rackhub launch` runs it.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--save", metavar="FILE", help="for the weights, as numpy has them")
    options = parser.parse_args()
    weights = train(options.steps)
    print(f"off by {np.abs(weights - TRUTH).max():.4f} after {options.steps} steps")
    if options.save is not None:
        np.save(options.save, weights)


if __name__ == "__main__":
    main()
