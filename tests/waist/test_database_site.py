"""SELECT percentile_disc(0.5) ... HAVING count(*) >= K, over databases that stay at their hospitals.

Each hospital brings a live connection that only reads. The median of a column is found by halving: a round asks how many rows lie at or below the
middle. Only counts leave, added up over the hospitals, and nothing is asked of a ward that has fewer than K rows in all of them.
"""

from __future__ import annotations

import functools
import os
import sqlite3
import threading

import numpy as np

import atoll
from atoll.core.requests.cohort import Community
from atoll.testing import Timetable
from tests.support.scales import assert_true_bytes

K, STEPS, WARDS = 8, 12, ("cardiology", "oncology", "surgery")


@functools.cache
def connected(path, process, thread):
    """The connection of a thread, as `atoll site --data PATH` opens it."""
    return sqlite3.connect(f"file:{path}?mode=ro", uri=True)


class Hospitals(Community):
    def shard(self, i):
        return connected(super().shard(i), os.getpid(), threading.get_ident())


@atoll.task
def count_rows(island, message):
    found = island.data.execute("select ward, count(*) from visits group by ward").fetchall()
    return {ward: atoll.Sum(float(dict(found).get(ward, 0))) for ward in WARDS}


@atoll.task
def count_below(island, limits):
    ask = "select count(*) from visits where ward = ? and cost <= ?"
    found = {ward: island.data.execute(ask, (ward, cost)).fetchone() for ward, cost in limits.items()}
    return {ward: atoll.Sum(float(count)) for ward, (count,) in found.items()}


async def medians(fed):
    """The least multiple of 1/4 at or below which half of a ward's rows lie; of wards with K rows."""
    total = await fed.sum(fed.parties, count_rows)
    rows = {ward: float(total[ward]) for ward in WARDS if total[ward] >= K}
    state = await fed.restore({"step": 0, "low": dict.fromkeys(rows, 0.0), "high": dict.fromkeys(rows, 1024.0)})
    while state["step"] < STEPS:
        low, high = dict(state["low"]), dict(state["high"])
        middle = {ward: (low[ward] + high[ward]) / 2 for ward in rows}
        below = await fed.sum(fed.parties, count_below, middle, at=state["step"], quorum=len(fed.parties))
        for ward in rows:
            (high if 2 * below[ward] >= rows[ward] else low)[ward] = middle[ward]
        state = {"step": state["step"] + 1, "low": low, "high": high}
        await fed.checkpoint(state)
    return state["high"]


def test_the_medians_are_those_of_the_pooled_databases(survive, tmp_path_factory):
    rng, pooled = np.random.default_rng(0), {ward: [] for ward in WARDS}
    files = {name: str(tmp_path_factory.mktemp("data") / f"{name}.sqlite") for name in ("north", "south", "east")}
    for path in files.values():
        rows = [(WARDS[i % 2 if i < 11 else 2], float(rng.integers(1, 4000)) / 4) for i in range(12)]
        with sqlite3.connect(path) as made:
            made.execute("create table visits (ward text, cost real)")
            made.executemany("insert into visits values (?, ?)", rows)
        for ward, cost in rows:
            pooled[ward].append(cost)
    people, cost = Hospitals(files), Timetable({"east": 2.0})
    life = survive(medians, people, cost=cost)
    large = {ward: sorted(costs)[(len(costs) - 1) // 2] for ward, costs in pooled.items() if len(costs) >= K}
    assert set(large) == {"cardiology", "oncology"}
    assert life.result == large
    assert_true_bytes(life, medians, people, cost)
