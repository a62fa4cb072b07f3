"""Alignment between processes: the same result as in one process, also after `kill -9` in the middle."""

from __future__ import annotations

import pytest

from atoll.core.requests.cohort import Community
from atoll.core.world import World
from atoll.secure.psi import Ecdh, Opprf, Unbalanced
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
