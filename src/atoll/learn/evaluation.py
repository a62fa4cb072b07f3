"""Evaluation: the server's own test set, every client's own data, and how the clients differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.aggregate import Parts
from atoll.core.errors import ConfigError

if TYPE_CHECKING:
    from atoll.core.federation import Federation
    from atoll.core.tree import Tree

    from .learner import Learner

__all__ = ["Evaluation", "as_parts", "distribution", "scores"]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What is measured, and how often.

    Attributes:
        every: rounds between evaluations; the last round is always evaluated.
        server: evaluate the global model on the server's own test set.
        clients: evaluate it at this many clients too (all with ``-1``, none with 0), for the distribution over clients.
        clients_every: rounds between evaluations at clients; by default as often as ``every``.
    """

    every: int = 1
    server: bool = True
    clients: int = 0
    clients_every: int | None = None

    def __post_init__(self) -> None:
        if self.every < 1 or (self.clients_every is not None and self.clients_every < 1):
            raise ConfigError(f"every={self.every}, clients_every={self.clients_every}", remedy="use at least 1 round")
        if self.clients < -1:
            raise ConfigError(f"clients={self.clients}", remedy="use a number of clients, 0 for none, -1 for all")

    def due(self, number: int, last: bool) -> bool:
        """Whether the server evaluates after this round."""
        return last or number % self.every == 0

    def clients_due(self, number: int, last: bool) -> bool:
        """Whether clients evaluate after this round."""
        return self.clients != 0 and (last or number % (self.clients_every or self.every) == 0)

    async def at_clients(self, fed: Federation, learner: Learner, params: Tree, number: int) -> dict[str, Any]:
        """Scores at clients: their mean by examples, and the distribution over clients."""
        parties = fed.parties
        if 0 < self.clients < len(parties):
            drawn = fed.rng.child("evaluation", number).generator().choice(len(parties), self.clients, replace=False)
            parties = parties[np.sort(drawn)]
        combined = await fed.sum(parties, learner.measure, {"params": params}, at=("measure", number), quorum=0)
        if "measure" not in combined.value:
            return {}
        per_client = [scores(part.value) for part in combined["measure"]]
        weights = [float(part.value["n"]) for part in combined["measure"]]
        return distribution(per_client, weights)


def as_parts(sums: Mapping[str, float]) -> dict[str, Parts]:
    """A party's evaluation as a reply: its sums, as one part."""
    value = {name: np.float64(v) for name, v in sums.items()}
    return {"measure": Parts(value, examples=float(sums["n"]), metric=True)}


def scores(sums: Mapping[str, Any]) -> dict[str, float]:
    """Means from sums: ``loss_sum / n`` becomes ``loss``, ``correct / n`` accuracy, ``squared_error / n`` mse, ..."""
    n = float(sums["n"])
    if n == 0:
        return {}
    names = {"loss_sum": "loss", "correct": "accuracy", "squared_error": "mse", "absolute_error": "mae"}
    found = {names.get(name, name): float(value) / n for name, value in sums.items() if name != "n"}
    if "mse" in found:
        found["rmse"] = float(np.sqrt(found["mse"]))
    return found


def distribution(per_client: list[dict[str, float]], weights: list[float]) -> dict[str, Any]:
    """Mean by examples, and the spread over clients: standard deviation, median, worst and best decile means."""
    result: dict[str, Any] = {}
    for name in sorted({key for row in per_client for key in row}):
        pairs = [(row[name], w) for row, w in zip(per_client, weights, strict=True) if name in row]
        values = np.array([v for v, _ in pairs])
        result[f"clients/{name}"] = float(np.average(values, weights=[w for _, w in pairs]))
        tenth = max(1, round(len(values) / 10))
        ordered = np.sort(values)
        low, high = float(ordered[:tenth].mean()), float(ordered[-tenth:].mean())
        lower_better = any(word in name for word in ("loss", "error", "mse", "mae"))
        result[f"clients/{name}/worst_decile"] = high if lower_better else low
        result[f"clients/{name}/best_decile"] = low if lower_better else high
        result[f"clients/{name}/median"] = float(np.median(values))
        result[f"clients/{name}/std"] = float(values.std())
        result[f"clients/{name}/values"] = [round(float(v), 6) for v in values]
    return result
