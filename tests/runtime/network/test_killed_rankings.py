"""``kill -9`` of a site in the middle of a leader-board, over mutual TLS: stand-ins go on, the order is that of all who have shared, and who adds up wrongly is named."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from atoll.core.federation.federation import run_program
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.core.time.clock import run
from atoll.core.world import World
from atoll.engines import Inline
from atoll.secure import ranking
from atoll.secure.ranking import FIELD, add_ranks, mix_powers, rank_parties, send_number
from tests.support.bridge import Bridge
from tests.support.certificates import authority

pytestmark = pytest.mark.network

NUMBERS = [0.31, 0.12, 0.93, 0.55, 0.74, 0.62, 0.2, 0.86, 0.41]
ORDER = (0, 1, 2, 4, 5, 3, 8, 6, 7)
"""Parties 0, 3 and 6 are at the first site, and so on: in this order each group has a member at each site."""
DIES, LIES = {"client-1", "client-4", "client-7"}, "client-8"


@pytest.fixture(scope="module")
def bridge(tmp_path_factory):
    made = Bridge(tmp_path_factory.mktemp("b"), "tcp", authority())
    yield made
    made.close()


def or_die(island):
    if island.name in DIES:  # all of one site
        os.kill(os.getpid(), signal.SIGKILL)


@task
def send_or_die(island, message):
    or_die(island)
    return send_number(island, message)


@task
def mix_or_die(island, message):
    or_die(island)
    return mix_powers(island, message)


@task
def add_or_die(island, message):
    or_die(island)
    return add_and_lie(island, message)


@task
def add_and_lie(island, message):
    """One party moves the last of those that are ranked to the top."""
    rows = add_ranks(island, message)
    if island.name == LIES:
        rows = FIELD.add(rows, np.array([0] * (len(rows) - 1) + [1 << 59], dtype=np.uint64))
    return rows


def rank(engine, *, share=send_number):
    async def program(fed):
        parties = fed.parties.named(*(f"client-{i}" for i in ORDER))
        return await rank_parties(fed, parties, 1, at=0, share=share)

    async def main():
        world = World(Community(NUMBERS), engine, sealing="real", errors="drop", seed=1)
        return (await run_program(world, program))[0]

    return run(main())


@pytest.mark.parametrize("step", ["share", "mix", "add"])
def test_a_site_that_is_killed_costs_no_leader_board(bridge, monkeypatch, step):
    monkeypatch.setattr(ranking, "mix_powers", mix_or_die if step == "mix" else mix_powers)
    monkeypatch.setattr(ranking, "add_ranks", add_or_die if step == "add" else add_and_lie)
    board = rank(bridge.engine(sites=3, on_lost="drop"), share=send_or_die if step == "share" else send_number)
    gone = DIES if step == "share" else set()
    best = [f"client-{i}" for i in np.argsort(NUMBERS)[::-1]]
    assert board.order == tuple(name for name in best if name not in gone)
    assert set(board.unranked) == gone
    assert board.wrong == (LIES,)
    if step == "mix":
        monkeypatch.undo()
        assert DIES & set(rank(Inline()).representatives)  # without a loss one of them would have mixed
        assert not DIES & set(board.representatives)
