"""Sums that fail at their last step: no party, and no server, is other than before, on every engine, killed and resumed."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import QuorumError
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.testing import Timetable
from tests.support.double_masked import DoubleMasked
from tests.support.worlds import on_every_engine


@task
def visit(island, message):
    """Adds one to a private count, and sends it with a reproducible draw."""
    island.state = (island.state or 0) + 1
    return {"x": Sum(np.array([island.state, island.rng.generator().integers(100)]))}


async def visits(fed):
    state = await fed.restore([])
    while len(state) < 3:
        try:
            got = await fed.sum(fed.parties, visit, reducer=DoubleMasked(), at=len(state), quorum=4)
            row = {"x": got["x"], "who": got.senders.names}
        except QuorumError as error:
            row = {"failed": len(error.combined.silent), "n": error.combined.n}
        state = [*state, row]
        await fed.checkpoint(state)
    plain = await fed.sum(fed.parties, visit, at="last")
    return [*state, {"x": plain["x"]}]


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("engine", "lost"), on_every_engine(({"/@1//": [1, 3, 4]},), ({":reveal/": []},)), indirect=["engine"]
)
def test_a_sum_that_cannot_be_unmasked_counts_for_nobody(survive, lost):
    lost = {
        f"{step}DoubleMasked/tests.support.double_masked:reveal" if "@" in step else step: [f"client-{i}" for i in who]
        for step, who in lost.items()
    }
    life = survive(visits, Community([0.0] * 5), cost=Timetable(lost=lost))
    counts = [int(row["x"][0]) if "x" in row else None for row in life.result]
    if any(lost.values()):
        assert counts == [5, None, 10, 15], "the second visit of everyone is that of the third sum"
        assert life.result[1] == {"failed": 5, "n": 0}
    else:
        assert counts == [5, 10, 15, 20]
