"""Mixing matrices are dense: few are kept, and the nodes of a round share one."""

from __future__ import annotations

import gc
import weakref

import numpy as np

from atoll.learn.topology.mixing import mixing_matrix
from atoll.topology import ErdosRenyi, Ring


def test_nodes_of_a_round_share_a_matrix():
    members = np.arange(9)
    assert mixing_matrix(Ring(), members, 3) is mixing_matrix(Ring(), members.copy(), 3)


def test_at_most_two_are_kept():
    alive = [weakref.ref(mixing_matrix(ErdosRenyi(0.5), np.arange(8), key)) for key in range(6)]
    gc.collect()
    assert [ref() is not None for ref in alive] == [False] * 4 + [True] * 2
