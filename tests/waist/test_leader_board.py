"""A leader-board of numbers that nobody shows (Tang, Shi, Yao 2011, with stand-ins as in FedTruthFinder), with users who are lost at every step, and by a sort among three helpers.

The protocols are `atoll.secure.ranking`'s: five groups take turns, and the server adds up shares of a polynomial in each number.
"""

from __future__ import annotations

import numpy as np
import pytest

from atoll.core.requests.cohort import Community
from atoll.secure.ranking import rank_by_sorting, rank_parties
from atoll.testing import Timetable
from tests.support.worlds import on_every_engine

NUMBERS = [0.31, 0.12, 0.93, 0.55, 0.74, 0.62, 0.2, 0.86, 0.41, 0.05, 0.99]
LOST = {
    "send_number/@0/share": ["client-4"],  # not ranked
    "mix_powers/@0/mix/0": ["client-0", "client-1", "client-2", "client-3", "client-5"],  # stand-ins mix
    "add_ranks/@0/add": ["client-1", "client-6", "client-9"],
    "hand_number/@1/share": ["client-2", "client-7"],
}


async def rank_both_ways(fed):
    state = await fed.restore(None)
    if state is None:
        board = await rank_parties(fed, fed.parties, 2, at=0, deadline=5.0)
        state = {"order": list(board.order), "seen": dict(board.seen), "by": list(board.representatives)}
        await fed.checkpoint(state)
    sort = await rank_by_sorting(fed, fed.parties, ["client-3", "client-5", "client-8"], at=1, deadline=5.0)
    return {**state, "sorted": list(sort.order)}


@pytest.mark.quick("inline*", "batched-lost0")
@pytest.mark.parametrize(("engine", "lost"), on_every_engine((LOST,), ({},)), indirect=["engine"])
def test_the_order_is_that_of_the_numbers(survive, lost):
    life = survive(
        rank_both_ways, Community(NUMBERS), cost=Timetable(lost=lost), points=5, secret_seed=3
    )  # a sort's bytes follow from its shuffles
    best = [f"client-{i}" for i in np.argsort(NUMBERS)[::-1]]
    gone = {text.split("/")[0]: names for text, names in lost.items()}
    assert life.result["order"] == [name for name in best if name not in gone.get("send_number", [])]
    assert life.result["sorted"] == [name for name in best if name not in gone.get("hand_number", [])]
    assert not set(life.result["by"]) & set(gone.get("mix_powers", []))
    assert [int(name.removeprefix("client-")) % 5 for name in life.result["by"]] == [0, 1, 2, 3, 4]
