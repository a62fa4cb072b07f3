"""A program and a kind of job of one's own, as a user has them in a module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import DataError
from atoll.core.federation.federation import Federation
from atoll.core.job import Job, Prepared
from atoll.core.requests.task import task
from atoll.core.validation import Checked
from atoll.rounds import each_round


@task
def above(island: Any, threshold: float) -> dict[str, Sum]:
    """How many rows of the first column lie above a threshold."""
    values = np.asarray(island.data["x"])[:, 0]
    return {"above": Sum(np.int64((values > threshold).sum())), "rows": Sum(np.int64(len(values)))}


async def median(fed: Federation, low: float, high: float) -> float:
    """The median of the first column over everybody's rows, by bisection."""
    state = await fed.restore({"low": low, "high": high})
    for _ in each_round(fed):
        middle = (state["low"] + state["high"]) / 2
        counts = await fed.sum(fed.parties, above, middle)
        side = "low" if 2 * int(counts["above"]) > int(counts["rows"]) else "high"
        state = {**state, side: middle}
        fed.record({"error": state["high"] - state["low"]})
        await fed.checkpoint(state)
    return float((state["low"] + state["high"]) / 2)


@dataclass(frozen=True)
class Largest(Checked, Job):
    """The largest value of a column, of which the outcome is a file too."""

    kind: ClassVar[str] = "largest"
    one_form: ClassVar[bool] = True

    column: int = 0

    def prepare(self, data: Any) -> Prepared:
        return _PreparedLargest(self)


class _PreparedLargest(Prepared):
    def __init__(self, job: Largest) -> None:
        self.job = job

    async def program(self, fed: Federation) -> float:
        replies = await fed.ask_all(fed.parties, largest, self.job.column)
        return float(max(replies.values))

    def check(self, population: Any) -> None:
        if np.asarray(population.shard(0)["x"]).shape[1] <= self.job.column:
            raise DataError(f"there is no column {self.job.column}", remedy="name another")

    def facts(self, outcome: float) -> Mapping[str, Any]:
        return {"result": outcome}

    def files(self, outcome: float) -> Mapping[str, bytes]:
        return {"largest.txt": repr(outcome).encode()}


@task
def largest(island: Any, column: int) -> float:
    """The largest value of a column at one party."""
    return float(np.asarray(island.data["x"])[:, column].max())
