"""The sweep: configurations of the uplink, their trainings, accuracy and rate of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from atoll.reproduce import Lab, TrainedRun

__all__ = ["UPLINKS", "CompressionTask", "Found", "found_of", "settings", "sweep"]

_ROOM = "atoll.reproduce.compression.tasks"


def _sq(bits: int, word: int, refresh: int = 1) -> list[dict[str, Any]]:
    # Without check words, as in the paper: nothing is masked here, so overflows are counted exactly.
    words = {"bits": bits, "modulus_bits": word, "checked": 0}
    return [{"name": "ScalarQuantizer", **words, "spread": 2.0, "refresh": refresh}]


def _prune(fraction: float, scaled: bool = False, seed: int | None = None) -> list[dict[str, Any]]:
    fixed = {} if seed is None else {"seed": seed}
    return [{"name": "RandomK", "fraction": fraction, "scaled": scaled, "shared": True, "per": "tensor", **fixed}]


def _pq(block: int, codewords: int, refresh: int = 1) -> list[dict[str, Any]]:
    book = {"block": block, "codewords": codewords, "spread": 1.0, "iterations": 10, "refresh": refresh}
    return [{"name": "ProductQuantizer", **book}]


LATE = 20
"""Rounds between two fits, where the period of refreshing is looked at."""
UPLINKS: dict[str, list[dict[str, Any]]] = {
    "plain": [],
    **{
        f"sq {b},{p}": _sq(b, p)
        for b, p in ((8, 16), (8, 12), (8, 11), (8, 10), (8, 9), (4, 8), (4, 6), (2, 4), (2, 3))
    },
    **{f"prune 1/{n}": _prune(1 / n) for n in (8, 16, 32)},
    **{f"prune 1/{n} scaled": _prune(1 / n, scaled=True) for n in (8, 16, 32)},
    **{f"pq {d},{k}": _pq(d, k) for d, k in ((4, 16), (8, 256), (8, 64), (8, 32), (16, 256), (16, 16))},
    "prune 1/4, sq 8,10": [*_prune(1 / 4), *_sq(8, 10)],
    "sq 8,12 late": _sq(8, 12, LATE),
    "sq 8,9 late": _sq(8, 9, LATE),
    "pq 4,16 late": _pq(4, 16, LATE),
    "pq 16,16 late": _pq(16, 16, LATE),
    "prune 1/8 scaled fixed": _prune(1 / 8, scaled=True, seed=1),
}
"""Name -> stages. ``sq b,p``: codes and words; ``pq d,k``: entries a block and codewords; ``late``: fitted every 20 rounds."""


@dataclass(frozen=True)
class CompressionTask:
    """A task, and how much of it is run.

    Attributes:
        name: of the task, a function of `atoll_papers.compression.tasks` that makes its clients.
        paper: the name of the paper's data set.
        rate: the paper's uplink compression at equal accuracy.
        model: function of that module that makes the model, and its settings.
        training: learning rate, epochs and batch size.
        cohort: clients a round.
        rounds: number of rounds.
        data: settings of the data.
        more: further settings of a run.
    """

    name: str
    paper: str
    rate: int
    model: Mapping[str, Any]
    training: Mapping[str, Any]
    cohort: int
    rounds: int
    data: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """What a training found.

    Attributes:
        accuracy: mean of the last three measured test accuracies.
        bits: bits of a reply, as its stages declare them; of a plain reply, 32 a parameter.
        rate: bits of a plain reply, over these.
        clamped: largest share of clamped entries of a round; ``None`` if nothing can be clamped.
        overflowed: mean share of overflowed sums.
        run: the training.
    """

    accuracy: float
    bits: float
    rate: float
    clamped: float | None
    overflowed: float | None
    run: TrainedRun


def settings(task: CompressionTask, uplink: str, seed: int = 0) -> dict[str, Any]:
    """Return a run's configuration."""
    model = dict(task.model)
    return {
        "name": f"{task.paper}-{uplink}".lower().replace(" ", "-").replace(",", "-").replace("/", "-"),
        "data": {"source": {"name": f"{_ROOM}:{task.name}", **task.data}},
        "model": {"name": f"{_ROOM}:{model.pop('name')}", **model},
        "engine": "batched",
        "algorithm": {"name": "FedAvg", **task.training},
        "selection": {"name": "Uniform", "count": task.cohort},
        "uplink": UPLINKS[uplink],
        "evaluation": {"every": max(1, task.rounds // 20)},
        "rounds": task.rounds,
        "checkpoint_every": task.rounds,
        "seed": seed,
        **task.more,
    }


def found_of(run: TrainedRun, plain: float) -> Found:
    """Return accuracy and rate of a training; ``plain`` are the bits of a plain reply."""
    seen = [float(row["test/accuracy"]) for row in run.rows if row.get("test/accuracy") is not None]
    last = run.rows[-1]
    bits = last["bits_declared"] / last["replied"] if last.get("bits_declared") else plain
    clamped = [row["clamped"] for row in run.rows if row.get("clamped") is not None]
    over = [row["overflowed"] for row in run.rows if row.get("overflowed") is not None]
    return Found(
        float(np.mean(seen[-3:])), bits, plain / bits, max(clamped) if clamped else None, float(np.mean(over)) if over else None, run
    )  # fmt: skip


def sweep(lab: Lab, task: CompressionTask, names: tuple[str, ...] = ()) -> dict[str, Found]:
    """Train the configurations, the plain one first."""
    names = tuple(dict.fromkeys(("plain", *(names or UPLINKS))))
    runs = {name: lab.train(settings(task, name)) for name in names}
    plain = 32.0 * parameters(runs["plain"])
    return {name: found_of(run, plain) for name, run in runs.items()}


def parameters(run: TrainedRun) -> int:
    """Return the number of parameters of a training's model."""
    from atoll.core.algebra import tree as T
    from atoll.runs.model import read_model

    return sum(int(np.size(leaf)) for leaf in T.leaves(read_model(run.folder.model_file)))
