"""Differential privacy for single examples: clients add noise to every local step (DP-SGD), so that no other party need be trusted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from atoll.core.errors import ConfigError
from atoll.core.event import Event
from atoll.core.exposure import Exposure

from ..algorithms.dp_sgd import DPSGD, LocalPasses
from .base import Mechanism, TrainingParts
from .claim import Attendance, Guarantee, count_epsilon

__all__ = ["ExampleDP"]


@dataclass(frozen=True, kw_only=True)
class ExampleDP(Mechanism):
    """DP-SGD at every client: the gradients of the algorithm are noisy sums of clipped gradients of single examples; see `atoll.algorithms.DPSGD`.

    Every local step releases ``(sum_{i in S} g_i min(1, C / ||g_i||) + N(0, (z C)^2)) / B``, where each example of a client is in ``S`` with probability ``q = min(1, B / n)`` by a
    coin of the client's own secret. All that a client sends or keeps is computed from these releases, so the promise holds against everybody, the server included, with any
    uplink and any reducer. A client that takes part in ``R`` rounds of ``s`` steps spends what ``R s`` Poisson-sampled Gaussians of noise multiplier ``z`` cost. The claim is for the
    client that spends most, if they have different numbers of examples. Those numbers are public: they weight replies.

    Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang 2016, "Deep Learning with Differential Privacy".

    Attributes:
        clip: largest norm of one example's gradient, ``C``.
        batch: expected size of a mini-batch, ``B``; ``None`` is the algorithm's ``batch_size``.
        rate: ``q`` for all clients, whatever their size; the algorithm then needs ``steps``.
        group_wise: clip each of ``L`` layers to ``C / sqrt(L)``, instead of the whole gradient to ``C``.
    """

    clip: float
    batch: int | None = None
    rate: float | None = None
    group_wise: bool = False
    unit: Literal["example"] = "example"
    neighbours: Literal["add-remove"] = "add-remove"
    adversary: Literal["server", "clients", "model"] = "server"
    per: ClassVar[str] = "local step"
    protects: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "unit": ("example",),
        "neighbours": ("add-remove",),
        "adversary": ("server", "clients", "model"),
    }
    instead: ClassVar[Mapping[str, str]] = {
        "user": "CentralDP, which protects all examples of a client together",
        "island": "CentralDP, which protects all examples of a client together",
        "replace-one": "algorithm=OutputPerturbation(...)",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise ConfigError(f"clip={self.clip}", where="ExampleDP", remedy="use a finite norm above 0")

    @property
    def assuming(self) -> tuple[str, ...]:
        """Numbers of examples are public."""
        return ("each client's number of examples is public: it weights replies",)

    def locally(self, training: TrainingParts) -> LocalPasses:
        """Return the local passes of a contact."""
        return self._around(training, 1.0).releases

    def _around(self, training: TrainingParts, noise: float) -> DPSGD:
        return DPSGD(
            training.algorithm,
            clip=self.clip,
            noise=noise,
            batch=self.batch,
            rate=self.rate,
            group_wise=self.group_wise,
        )

    def parts(self, training: TrainingParts, taking: Attendance, noise: float) -> Mapping[str, Any]:
        """Install DP-SGD around the algorithm.

        Raises:
            ConfigError: the clients' numbers of examples are unknown, and the sampling rate follows from them.
        """
        if taking.clients and not taking.sizes and self.rate is None:
            raise ConfigError(
                "the clients' numbers of examples are unknown, and with them the chance of an example",
                where="ExampleDP",
                remedy="set rate=..., one chance for all, and steps=... in the algorithm",
            )
        return {"algorithm": self._around(training, noise)}

    def events(self, taking: Attendance, noise: float) -> tuple[Event, ...]:
        """Return the steps of one contact of the client that spends most."""
        found = self._candidates(taking, noise)
        if len(found) < 2:
            return found[0] if found else ()
        return max(found, key=lambda events: self._cost(events, taking.rounds, "rdp"))

    def _candidates(self, taking: Attendance, noise: float) -> list[tuple[Event, ...]]:
        work: LocalPasses = taking.local
        return [work.events(noise, *what) for what in work.worst(taking.sizes or (10 * work.plan.batch,))]

    def _cost(self, events: tuple[Event, ...], rounds: int, accountant: str) -> float:
        releases = tuple((event, rounds) for event in events)
        return count_epsilon(releases, self._delta, accountant, self.adversary, self.neighbours)

    def solved(self, taking: Attendance) -> tuple[float, Guarantee]:
        """Return the noise and the claim, for the client that spends most by the accountant that was asked for."""
        noise, claim = super().solved(taking)
        while True:  # the search takes the client that spends most by another accountant, which is faster
            costs = [self._cost(events, taking.rounds, self.accountant) for events in self._candidates(taking, noise)]
            worst = max([claim.epsilon, *costs])
            if self.epsilon is None or worst <= self.epsilon:
                return noise, self._make_claim(taking, noise, worst)
            noise *= 1.001
            claim = self._make_claim(taking, noise, self.spent(taking, noise))

    def exposures(self, claim: Guarantee) -> tuple[Exposure, ...]:
        """Return what the promise is for."""
        return (
            Exposure(
                "everybody, the server included", f"noisy gradients of clients: {claim}", "; ".join(self.assuming)
            ),
        )
