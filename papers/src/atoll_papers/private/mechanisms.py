"""Mechanisms of `survey-privacy`: the same federated averaging on digits by writer, at the same epsilon."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from atoll.reproduce import Lab, NotKept

__all__ = ["DELTA", "COMPARED", "ComparedMechanism", "accuracies"]

DELTA = 1e-4
"""Less than one over the 539 writers."""

_BY_WRITER = {"name": "natural", "column": "writer"}
_WRITERS = 539
_ROWS_OF_A_WRITER = 130
"""More than writers have on average (111): so many rows have at least one writer."""


@dataclass(frozen=True)
class ComparedMechanism:
    """A mechanism of the comparison.

    Attributes:
        name: its name in tables.
        trusts: who is trusted.
        unit: what is protected.
        privacy: settings of the mechanism, without epsilon; ``None`` trains without.
        rounds: number of rounds; few where every round costs as much noise.
        pure: whether it needs no delta.
        shared: whether the replies of a round share the noise, so that it must know how many there are at least.
        seeds: trainings: one where a round of 539 clients takes seconds, many where few noisy rounds scatter.
        more: further settings of the run.
    """

    name: str
    trusts: str
    unit: str
    privacy: dict[str, Any] | None
    rounds: int
    pure: bool = False
    shared: bool = False
    seeds: int = 2
    more: dict[str, Any] = field(default_factory=dict)

    def settings(self, epsilon: float | None, seed: int, rows: int | None) -> dict[str, Any]:
        """Return the configuration of a run.

        Args:
            epsilon: of the whole training; ``None`` without a mechanism.
            seed: of the run.
            rows: training rows; ``None`` for all.
        """
        privacy = None
        if self.privacy is not None:
            privacy = {**self.privacy, "epsilon": epsilon, **({} if self.pure else {"delta": DELTA})}
            if self.shared:
                privacy["least"] = _WRITERS if rows is None else rows // _ROWS_OF_A_WRITER
        source: dict[str, Any] = {"name": "atoll.reproduce.fedavg_mnist:some_digits", "writers": True}
        return {
            "name": f"privacy-{self.name.lower().replace(' ', '-')}-{epsilon or 'none'}".replace(",", ""),
            "data": {"source": source if rows is None else {**source, "rows": rows}, "partition": _BY_WRITER},
            "model": {"name": "linear", "features": 784, "outputs": 10},
            "algorithm": {"name": "FedAvg", "lr": 0.1, "epochs": 1, "batch_size": 20},
            "selection": "Everyone",
            "pacing": {"name": "Synchronous", "quorum": 1.0},
            "rounds": self.rounds,
            "evaluation": {"every": self.rounds},
            "checkpoint_every": self.rounds,
            "seed": seed,
            **({} if privacy is None else {"privacy": privacy}),
            **self.more,
        }


_TURNS = {"selection": {"name": "CyclicGroups", "count": 0.1}}
"""Ten groups of clients take turns, once each: correlated noise needs no secret sample, and pays for each turn."""

_SCATTERED = 8
"""Trainings of a mechanism whose noise is larger than what it learns: accuracies of two differ by up to a tenth."""

_TORCH = {"model": {"name": "mlp", "features": 784, "outputs": 10, "hidden": []}}
"""The same regression as a PyTorch module, whose clients take private steps in blocks."""

COMPARED = (
    ComparedMechanism("none", "everybody", "nothing", None, 10),
    ComparedMechanism("central", "the server", "user", {"name": "CentralDP", "clip": 1.0}, 10),
    ComparedMechanism(
        "distributed", "the secure sum", "user", {"name": "DistributedDP", "clip": 1.0, "bits": 24}, 10, shared=True,
        seeds=1,
        more={"reducer": {"name": "SecureAggregation", "masks": "virtual", "neighbours": 20, "threshold": 11}},
    ),
    ComparedMechanism("tree", "the server", "user", {"name": "DPFTRL", "clip": 1.0, "factorisation": "tree"}, 10, more=_TURNS),
    ComparedMechanism("bands", "the server", "user", {"name": "DPFTRL", "clip": 1.0, "factorisation": "optimal"}, 10, more=_TURNS),
    ComparedMechanism("example", "nobody", "example", {"name": "ExampleDP", "clip": 1.0}, 10, seeds=1, more=_TORCH),
    ComparedMechanism("local, Gaussian", "nobody", "user", {"name": "GaussianLDP", "clip": 1.0}, 3, seeds=_SCATTERED),
    ComparedMechanism("local, Laplace", "nobody", "user", {"name": "LaplaceLDP", "clip": 10.0}, 2, pure=True, seeds=_SCATTERED),
    ComparedMechanism("local, signs", "nobody", "user", {"name": "SignsLDP", "limit": 0.02, "entries": 4}, 2, pure=True, seeds=_SCATTERED),
    ComparedMechanism(
        "local, FedSel", "nobody", "user", {"name": "FedSelDP", "limit": 0.1, "entries": 4, "fraction": 0.02}, 2, pure=True, seeds=_SCATTERED
    ),
    ComparedMechanism(
        "shuffled, Laplace", "whoever shuffles", "user",
        {"name": "ShuffledDP", "local": {"name": "LaplaceLDP", "noise": 1.0, "clip": 10.0}, "shuffler": "server"}, 2, seeds=_SCATTERED,
    ),
)  # fmt: skip
"""All mechanisms, from the most trust to the least, and none first."""


def accuracies(
    lab: Lab, tested: ComparedMechanism, epsilon: float | None, rows: int | None, seeds: int | None = None
) -> list[float] | None:
    """Return the test accuracy of each seed; ``None`` if it is not kept.

    Args:
        lab: trains, or reads back.
        tested: the mechanism.
        epsilon: of the whole training; ``None`` without a mechanism.
        rows: training rows; ``None`` for all.
        seeds: trainings; ``None`` for the mechanism's own number.
    """
    try:
        return [
            lab.train(tested.settings(epsilon, seed, rows)).last("test/accuracy")
            for seed in range(tested.seeds if seeds is None else seeds)
        ]
    except NotKept:
        return None
