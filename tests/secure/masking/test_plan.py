"""Degree and threshold from the expected loss and corruption, and the graph."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import ConfigError
from atoll.secure.masking.agreement import in_one_piece, rings
from atoll.secure.masking.reducer import MaskingPlan, plan


@pytest.mark.parametrize(
    ("parties", "corrupt", "loss", "k", "t"),
    [(100, 0.05, 0.1, 18, 6), (1000, 0.05, 0.1, 40, 19), (10000, 0.2, 0.2, 134, 70)],
)
def test_the_least_degree_and_threshold(parties, corrupt, loss, k, t):
    """Golden: the conditions of Bell et al. 2020 (semi-honest), with exact hypergeometric tails for 2^-40 and 2^-30."""
    assert plan(parties, loss, corrupt) == MaskingPlan(k, t)


def test_a_plan_keeps_its_promise_with_exact_fractions():
    """One condition by whole numbers: with k = 18 and t = 6 it holds, and with t = 5 it does not."""
    from fractions import Fraction
    from math import comb

    def tail(t, k=18):
        return 100 * sum(Fraction(comb(5, i) * comb(94, k - i), comb(99, k)) for i in range(t, 6))

    assert tail(6) <= Fraction(1, 2**40) < tail(5)


@given(st.integers(3, 400), st.sampled_from([(0.1, 0.05), (0.1, 0.1), (0.0, 0.0), (0.05, 0.2)]))
def test_a_plan_is_for_a_graph_that_exists_and_no_share_is_a_seed(parties, expected):
    """With an odd degree the graph would have one neighbour more, and the chance of secrecy would be another's."""
    made = plan(parties, *expected)
    assert {len(near) for near in rings(parties, made.neighbours, 0)} == {made.neighbours}
    assert 2 <= made.threshold <= made.neighbours


def test_no_plan_is_possible_for_half_corrupt_and_half_lost():
    with pytest.raises(ConfigError, match="whose sum is below 1"):
        plan(10, 0.5, 0.5)
    with pytest.raises(ConfigError, match=r"no threshold that both keeps secrets and recovers.*invite more parties"):
        plan(10, 0.54, 0.45)


@given(st.integers(2, 40), st.integers(1, 45), st.integers(0, 99))
def test_a_ring_has_its_degree_and_is_symmetric(parties, degree, order):
    graph = rings(parties, degree, order)
    even = min(parties - 1, degree + degree % 2)
    assert {len(near) for near in graph} == {even if degree < parties - 1 else parties - 1}
    assert all(i in graph[j] for i, near in enumerate(graph) for j in near)
    assert in_one_piece(frozenset(range(parties)), graph)
    assert graph == rings(parties, degree, order)


def test_pieces_are_found():
    graph = rings(12, 2, 3)
    ring = [0]
    while len(ring) < 12:
        ring.append(next(j for j in graph[ring[-1]] if j not in ring))
    assert in_one_piece(frozenset(ring[:5]), graph)
    assert not in_one_piece(frozenset([*ring[:3], *ring[6:8]]), graph)
    assert not in_one_piece(frozenset(), graph)
    # with 4 neighbours, two in a row may be lost, three may not
    wide = rings(12, 4, 3)
    lost = random.Random(0).sample(range(12), 1)
    assert in_one_piece(frozenset(set(range(12)) - set(lost)), wide)
