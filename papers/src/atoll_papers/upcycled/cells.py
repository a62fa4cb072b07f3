"""Cells of the tables: tuned on validation rows, run with several seeds, kept by the lab."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.reproduce import Lab, NotKept

from .columns import COLUMNS
from .methods import UpcycledMethod, algorithm, tries

__all__ = ["UpcycledCell", "UpcycledProtocol", "cell", "settings", "tuned"]

_ROOM = "atoll.reproduce.upcycled"
_MANY = {"qmnist": 10}
_MANY_OF_SMALL = 40
"""Rounds from which native code is worth its translation, which costs as much as ten rounds without it."""
_TUNING_SEEDS = 100
"""The first seed of tuning; tables use 0, 1, ..."""


@dataclass(frozen=True)
class UpcycledProtocol:
    """How much is run.

    Attributes:
        late: share of stragglers.
        rounds: ``T`` of the bases; Upcycled versions have ``2 T``.
        seeds: runs per cell.
        tuning_seeds: runs of each setting while tuning.
        tuning_rounds: ``T`` while tuning; ``None`` for ``rounds``.
        tuning_late: share of stragglers while tuning.
        epochs: local epochs.
        rows: most rows per client (for tweets: in all); 0 for all.
        draw: seed of the data.
    """

    late: float
    rounds: int = 80
    seeds: int = 4
    tuning_seeds: int = 2
    tuning_rounds: int | None = None
    tuning_late: float = 0.9
    epochs: int = 10
    rows: int = 0
    draw: int = 0


@dataclass(frozen=True)
class UpcycledCell:
    """A method on a population.

    Attributes:
        method: with its chosen settings.
        values: accuracy of each seed.
        seconds: of all its runs.
    """

    method: UpcycledMethod
    values: np.ndarray
    seconds: float

    def __str__(self) -> str:
        return f"{100 * self.values.mean():.2f} ± {100 * self.values.std(ddof=1) if len(self.values) > 1 else 0:.2f}"


def _places(kind: str) -> tuple[str, str, str, int]:
    """Return the factories of clients and model, a name for the run, and 30 % of the clients."""
    if kind in COLUMNS:
        return f"{_ROOM}.columns:islands", f"{_ROOM}.columns:model", kind, COLUMNS[kind][1]
    return f"{_ROOM}.data:islands", f"{_ROOM}.model:logistic", f"syn-{kind}", 9


def settings(
    method: UpcycledMethod, kind: str, protocol: UpcycledProtocol, *, tuning: bool, seed: int
) -> dict[str, Any]:
    """Return a run's configuration."""
    late = protocol.tuning_late if tuning else protocol.late
    rounds = protocol.tuning_rounds if tuning and protocol.tuning_rounds else protocol.rounds
    rounds *= 2 if method.way == "upcycled" else 1
    source, model, name, cohort = _places(kind)
    where = {"kind": kind, "tuning": tuning, "draw": protocol.draw, "rows": protocol.rows}
    evaluation: dict[str, Any] = {"every": rounds}
    if method.base == "pFedMe":
        evaluation.update(clients=-1, personal=True)
    return {
        "name": f"{name}-{method.base}-{method.way}".replace(",", "-").lower(),
        "data": {"source": {"name": source, **where}},
        "model": {"name": model, **where},
        "algorithm": algorithm(method, late, protocol.epochs),
        "selection": {"name": "Uniform", "count": cohort},
        **_speed(kind, rounds),
        "rounds": rounds,
        "evaluation": evaluation,
        "checkpoint_every": rounds,
        "seed": seed,
    }


def _speed(kind: str, rounds: int) -> dict[str, str]:
    """Choose native code if rounds repay it; the LSTM has none, and is fastest client by client."""
    if kind == "tweets":
        return {"engine": "inline", "compile": "never"}
    return {"engine": "batched", "compile": "always" if rounds >= _MANY.get(kind, _MANY_OF_SMALL) else "auto"}


def _accuracy(
    lab: Lab, method: UpcycledMethod, kind: str, protocol: UpcycledProtocol, **which: Any
) -> tuple[float, float]:
    """Return the accuracy of the last round, and seconds; 0 if the model became non-finite."""
    from atoll.core.errors import AtollError

    try:
        run = lab.train(settings(method, kind, protocol, **which))
    except AtollError as error:
        if "not finite" in error.what or "rejected" in error.what or "too few" in error.what:
            return 0.0, 0.0
        raise
    return run.last("personal/accuracy" if method.base == "pFedMe" else "test/accuracy"), run.seconds


def tuned(lab: Lab, base: str, way: str, kind: str, protocol: UpcycledProtocol) -> UpcycledMethod:
    """Pick a setting by the same rule for every method: the best mean accuracy on the validation rows at the table's own ``T``; on a tie, the smaller rate."""
    seeds = range(_TUNING_SEEDS, _TUNING_SEEDS + protocol.tuning_seeds)
    found = [
        (method, sum(_accuracy(lab, method, kind, protocol, tuning=True, seed=seed)[0] for seed in seeds))
        for method in tries(base, way, kind)
    ]
    return max(found, key=lambda pair: pair[1])[0]


def cell(lab: Lab, method: UpcycledMethod, kind: str, protocol: UpcycledProtocol) -> UpcycledCell:
    """Return a method's runs on the test rows: all seeds or, if nothing may be trained, the first kept ones.

    Raises:
        NotKept: nothing may be trained, and the first seed was not kept.
    """
    runs: list[tuple[float, float]] = []
    for seed in range(protocol.seeds):
        try:
            runs.append(_accuracy(lab, method, kind, protocol, tuning=False, seed=seed))
        except NotKept:
            if not runs:
                raise
            break
    return UpcycledCell(method, np.array([value for value, _ in runs]), sum(seconds for _, seconds in runs))
