"""Alignment between processes: the same result as in one process, also after `kill -9` in the middle."""

from __future__ import annotations

import pytest

from atoll.core.requests.cohort import Community
from atoll.core.world import World
from atoll.secure.psi import Circuit, Ecdh, Opprf, Oprf, Unbalanced
from atoll.testing import killed_and_resumed
from tests.support.alignment import program_of, shared_keys, tables
from tests.support.worlds import WORLDS

pytestmark = pytest.mark.network

SETS = tables({"bank": [f"u{i}" for i in range(20)], "shop": [f"u{i}" for i in range(12, 50)]})


@pytest.mark.parametrize(
    "protocol",
    [Ecdh(), *(pytest.param(one, marks=pytest.mark.slow) for one in (Unbalanced(), Opprf()))],
    ids=lambda one: type(one).__name__,
)
def test_killed_sites_go_on_to_the_same_result(tmp_path, protocol):
    def make_world(folder, resume):
        return World(Community(dict(SETS)), WORLDS["network"](2), folder=folder, resume=resume)

    life = killed_and_resumed(make_world, program_of(protocol, list(SETS)), tmp_path, points=2, exact_spending=False)
    assert life.result["bank"]["names"] == life.result["shop"]["names"] == shared_keys(SETS)


@pytest.mark.parametrize(
    ("protocol", "more"),
    [
        (Circuit(), {"result": "count"}),
        pytest.param(Oprf(), {"learners": ("bank",), "superset": 0.5}, marks=pytest.mark.slow),
        pytest.param(Circuit(), {"result": "sum", "column": "amount", "holder": "shop", "min_count": 5}, marks=pytest.mark.slow),
    ],
    ids=["count", "superset", "sum"],
)  # fmt: skip
def test_killed_sites_compute_on_shares_and_hide_rows(tmp_path, protocol, more):
    data = {**SETS, "shop": {**SETS["shop"], "amount": list(range(38))}}

    def make_world(folder, resume):
        return World(Community(dict(data)), WORLDS["network"](2), folder=folder, resume=resume)

    program = program_of(protocol, list(data), **more)
    found = killed_and_resumed(make_world, program, tmp_path, points=2, exact_spending=False).result["bank"]
    assert (found["count"], found["total"]) == ((None, sum(range(8))) if "column" in more else (8, None))
