"""Cells of the tables: tuned on validation rows, run with several seeds, kept by the lab."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..entry import Lab
from .methods import Method, algorithm, tries

__all__ = ["Cell", "Protocol", "cell", "settings", "tuned"]

_DATA = "atoll.reproduce.upcycled.data"


@dataclass(frozen=True)
class Protocol:
    """How much is run.

    Attributes:
        late: share of stragglers.
        rounds: ``T`` of the bases; Upcycled versions have ``2 T``.
        seeds: runs a cell.
        tuning_rounds: ``T`` while tuning.
        tuning_late: share of stragglers while tuning.
        epochs: local epochs.
        rows: most rows a client; 0 for all.
        draw: seed of the data.
    """

    late: float
    rounds: int = 80
    seeds: int = 4
    tuning_rounds: int = 20
    tuning_late: float = 0.9
    epochs: int = 10
    rows: int = 0
    draw: int = 0


@dataclass(frozen=True)
class Cell:
    """A method on a population.

    Attributes:
        method: with its chosen settings.
        values: accuracy of each seed.
        seconds: of all its runs.
    """

    method: Method
    values: np.ndarray
    seconds: float

    def __str__(self) -> str:
        return f"{100 * self.values.mean():.2f} ± {100 * self.values.std(ddof=1) if len(self.values) > 1 else 0:.2f}"


def settings(method: Method, kind: str, protocol: Protocol, *, tuning: bool, seed: int) -> dict[str, Any]:
    """A run's configuration."""
    late, base_rounds = (protocol.tuning_late, protocol.tuning_rounds) if tuning else (protocol.late, protocol.rounds)
    rounds = base_rounds * (2 if method.way == "upcycled" else 1)
    where = {"kind": kind, "tuning": tuning, "draw": protocol.draw, "rows": protocol.rows}
    evaluation: dict[str, Any] = {"every": rounds}
    if method.base == "pFedMe":
        evaluation.update(clients=-1, personal=True)
    return {
        "name": f"syn-{kind}-{method.base}-{method.way}".replace(",", "-").lower(),
        "data": {"source": {"name": f"{_DATA}:islands", **where}},
        "model": {"name": f"{_DATA}:tested", **where},
        "algorithm": algorithm(method, late, protocol.epochs),
        "selection": {"name": "Uniform", "count": 9},
        "engine": "inline",
        "rounds": rounds,
        "evaluation": evaluation,
        "checkpoint_every": rounds,
        "seed": seed,
    }


def _accuracy(lab: Lab, method: Method, kind: str, protocol: Protocol, **which: Any) -> tuple[float, float]:
    """Accuracy of the last round, and seconds; 0 where the model left the finite numbers."""
    from atoll.core.errors import AtollError

    try:
        run = lab.train(settings(method, kind, protocol, **which))
    except AtollError as error:
        if "not finite" in error.what or "rejected" in error.what or "too few" in error.what:
            return 0.0, 0.0
        raise
    return run.last("personal/accuracy" if method.base == "pFedMe" else "test/accuracy"), run.seconds


def tuned(lab: Lab, base: str, way: str, kind: str, protocol: Protocol) -> Method:
    """The best of six settings on the validation rows, at the first seed; of equals the first."""
    found = [(method, _accuracy(lab, method, kind, protocol, tuning=True, seed=0)[0]) for method in tries(base, way)]
    return max(found, key=lambda pair: pair[1])[0]


def cell(lab: Lab, method: Method, kind: str, protocol: Protocol) -> Cell:
    """A method's runs on the test rows."""
    runs = [_accuracy(lab, method, kind, protocol, tuning=False, seed=seed) for seed in range(protocol.seeds)]
    return Cell(method, np.array([value for value, _ in runs]), sum(seconds for _, seconds in runs))
