# SPDX-License-Identifier: Apache-2.0
"""Simulates the computation time of layers, and the times at which their gradients are pushed.

With times by layer (``specs.layerfile``) an iteration proceeds as in a framework: the backward pass
goes from the last layer to the first and pushes each layer's gradients when it is done; the next
forward pass goes from the first to the last, and waits for each layer's sums. Communication thus
overlaps with computation (Peng et al., "A Generic Communication Scheduler for Distributed DNN
Training Acceleration", SOSP 2019, section 2.1). Values are computed all at once when all parameters
have arrived, so results do not depend on the times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future

from hosts.client import Sums
from specs.layerfile import LayerTimes
from workloads.models import Parameters
from workloads.observer import NULL_OBSERVER, Observer

Push = Callable[[Parameters], "Future[Sums]"]


class Pacing:
    """The pacing of one worker.

    compute: takes the time of a computation of so many seconds.
    layers: names of parameters by layer, in the order of the forward pass.
    times: by layer; None: an iteration takes `seconds`, and all gradients are pushed together.
    iterations: number of the last iteration.
    """

    def __init__(
        self,
        compute: Callable[[float], None],
        layers: Mapping[str, Sequence[str]],
        times: Mapping[str, LayerTimes] | None,
        seconds: float,
        iterations: int,
        observer: Observer = NULL_OBSERVER,
    ) -> None:
        self._compute, self._observer = compute, observer
        self._layers, self._times, self._seconds = layers, times, seconds
        self._iterations = iterations
        self._ready = False  # the forward pass of the current iteration is done

    def exchange(self, gradients: Parameters, iteration: int, push: Push) -> Sums:
        """Exchanges the gradients of an iteration for their results.

        With times by layer this takes from the end of its forward pass to the end of the next one;
        the first iteration includes its own forward pass, and the last one no next.
        """
        if self._times is None:
            return self._together(gradients, iteration, push)
        times, observer = self._times, self._observer
        if not self._ready:
            for layer in self._layers:
                self._takes(f"forward {layer}", times[layer].forward_seconds, iteration)
            self._ready = True
        pushed = {}
        for layer, keys in reversed(list(self._layers.items())):
            self._takes(f"backward {layer}", times[layer].backward_seconds, iteration)
            observer.pushed([layer], iteration)
            pushed[layer] = push({key: gradients[key] for key in keys})
        came = Sums()
        for layer in self._layers:
            part = self._wait(layer, [layer], pushed[layer], iteration)
            came.update(part)
            came.workers.update(part.workers)
            came.members.update(part.members)
            if iteration < self._iterations:
                self._takes(f"forward {layer}", times[layer].forward_seconds, iteration + 1)
        return came

    def _together(self, gradients: Parameters, iteration: int, push: Push) -> Sums:
        self._takes("compute", self._seconds, iteration)
        self._observer.pushed(self._layers, iteration)
        return self._wait("all layers", self._layers, push(gradients), iteration)

    def _takes(self, what: str, seconds: float, iteration: int) -> None:
        self._observer.begins("compute", what, iteration)
        self._compute(seconds)
        self._observer.ends()

    def _wait(self, what: str, layers: Iterable[str], sums: Future[Sums], iteration: int) -> Sums:
        self._observer.begins("wait", f"wait for {what}", iteration)
        came = sums.result()
        self._observer.ends()
        self._observer.came(layers)
        return came
