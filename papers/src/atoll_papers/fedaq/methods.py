"""The methods of the table and its controls, as configurations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .tasks import FedAQTask

__all__ = ["METHODS", "FedAQMethod", "settings"]

Config = dict[str, Any]


@dataclass(frozen=True)
class FedAQMethod:
    """A row of the table.

    Attributes:
        name: the name in tables.
        bits: for an entry of the model, up (and down), as the paper counts.
        algorithm: configuration for a task and a learning rate.
        streams: models sent each way.
        fast: runs at ``lr = gamma`` instead of ``eta``: a control.
        unbiased: QSGD on the uplink and nothing on the downlink, as in Algorithm 7, instead of the authors' quantiser
            in both directions.
    """

    name: str
    bits: int
    algorithm: Callable[[FedAQTask, float], Config]
    streams: int = 1
    fast: bool = False
    unbiased: bool = False

    @property
    def base(self) -> str:
        """Return the base method of a control or a variant, as the paper names it."""
        return self.name.partition(",")[0]

    @property
    def each(self) -> int:
        """Return the bits per number."""
        return self.bits // self.streams


def _plain(name: str) -> Callable[[FedAQTask, float], Config]:
    return lambda task, lr: {"name": name, "lr": lr, "steps": task.steps, "batch_size": task.batch_size}


def _pair(name: str, **more: Any) -> Callable[[FedAQTask, float], Config]:
    def make(task: FedAQTask, lr: float) -> Config:
        return {**_plain(name)(task, lr), "mu": task.mu, "variant": "I", "eval_point": "w", **more}

    return make


METHODS = {
    made.name: made
    for made in (
        FedAQMethod("FedAvg", 32, _plain("FedAvg")),
        FedAQMethod("FedPAQ 8b", 8, _plain("FedPAQ")),
        FedAQMethod("FedCOMGATE 8b", 8, _plain("FedCOMGATE")),
        FedAQMethod("FedAC-I", 64, _pair("FedAC"), 2),
        FedAQMethod("FedAQ-I 8b", 16, _pair("FedAQ"), 2),
        FedAQMethod("FedAQ-II 8b", 16, _pair("FedAQ", variant="II"), 2),
        FedAQMethod("FedAQ-I 4b", 8, _pair("FedAQ"), 2),
        FedAQMethod("FedAvg, lr = gamma", 32, _plain("FedAvg"), fast=True),
        FedAQMethod("FedPAQ 8b, lr = gamma", 8, _plain("FedPAQ"), fast=True),
        FedAQMethod("FedAQ-I 8b, QSGD up only", 16, _pair("FedAQ"), 2, unbiased=True),
        FedAQMethod("FedAQ-I 8b, model is w_ag", 16, _pair("FedAQ", eval_point="ag"), 2),
    )
}
"""By name: the seven of the paper, the two controls at the same main step, and two variants of FedAQ-I."""


def settings(
    method: FedAQMethod, task: FedAQTask, seed: int, *, whole: bool = False, target: float | None = None
) -> Config:
    """Return a run's configuration: every client in every round.

    Args:
        method: the row.
        task: the column.
        seed: of the partition, the model and everything else.
        whole: all rounds, also beyond the target.
        target: what FedAvg reached, of a task without one of the paper's. FedAvg itself runs all rounds.
    """
    algorithm = method.algorithm(task, task.gamma if method.fast else task.lr)
    made: Config = {}
    if method.each < 32:
        stage: Config = {"name": "MinMaxAffine", "bits_each": method.each}
        algorithm["compressor"] = {"name": "QSGD", "levels": (1 << (method.each - 1)) - 1} if method.unbiased else stage
        made = {} if method.unbiased else {"downlink": stage}
    stop: Config = {}
    yardstick = task.target is None and (target is None or method.name == "FedAvg")
    if not whole and not yardstick:
        value = target if task.target is None else task.target
        stop = {"stop": [{"name": "Target", "metric": "test/accuracy", "value": value}]}
    return {
        "name": f"fedaq-{task.name}",
        "data": {"source": task.source, "partition": {"name": "iid", "parties": task.clients, "seed": seed}},
        "model": task.model,
        "algorithm": algorithm,
        "selection": "Everyone",
        "engine": task.engine,
        "rounds": task.rounds if yardstick else task.limit,
        "checkpoint_every": 10,
        "seed": seed,
        **made,
        **stop,
    }
