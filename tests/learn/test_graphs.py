"""Graphs, Metropolis weights, groups and membership: the laws that mixing rests on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError, ConfigError
from atoll.learn.topology.hierarchical import Grouped, members_of
from atoll.learn.topology.mixing import require_connected
from atoll.topology import (
    Complete,
    EdgeList,
    ErdosRenyi,
    Expander,
    Geometric,
    Membership,
    Ring,
    StarGraph,
    TimeVarying,
    Torus,
    check_matrix,
    components,
    contraction,
    metropolis,
)

GRAPHS = [
    Ring(),
    Ring(3),
    Torus(),
    Complete(),
    StarGraph(),
    Expander(4),
    ErdosRenyi(0.5),
    Geometric(0.5),
    TimeVarying(Ring(), 0.7),
    EdgeList(((0, 1), (1, 2))),
]


@settings(max_examples=25)
@given(st.sampled_from(GRAPHS), st.integers(6, 30), st.integers(0, 2**32))
def test_metropolis_weights_are_symmetric_and_doubly_stochastic(graph, n, key):
    matrix = metropolis(n, graph.edges(n, Rng(key)))
    check_matrix(matrix)
    edges = {tuple(e) for e in graph.edges(n, Rng(key)).tolist()}
    assert {tuple(e) for e in np.argwhere(np.triu(matrix, 1) > 0).tolist()} == edges


@settings(max_examples=20)
@given(st.sampled_from(GRAPHS), st.integers(6, 20), st.integers(0, 2**32))
def test_mixing_keeps_the_mean_and_contracts_by_the_second_eigenvalue(graph, n, key):
    matrix = metropolis(n, graph.edges(n, Rng(key)))
    x = np.random.default_rng(key).normal(size=(n, 4))
    mean = x.mean(axis=0)
    first, rate = np.linalg.norm(x - mean), contraction(matrix)
    for k in range(1, 8):
        x = matrix @ x
        np.testing.assert_allclose(x.mean(axis=0), mean, atol=1e-12)
        assert np.linalg.norm(x - mean) <= rate**k * first * (1 + 1e-9) + 1e-12


def test_the_measured_ring_of_twelve():
    # Reference: 9.33e-4 <= 1.86e-3 after 10 steps (an independent NumPy check of the survey's gossip; 12 nodes, 3 neighbours each side). The
    # bound is lambda_2^10 = ((1 + sqrt 3 + 1) / 7)^10, of the graph alone; how far below it one ends depends on the start, which is not given.
    matrix = metropolis(12, Ring(3).edges(12, Rng(0)))
    assert contraction(matrix) == pytest.approx((2 + 3**0.5) / 7, abs=1e-12)
    assert contraction(matrix) ** 10 == pytest.approx(1.86e-3, abs=5e-6)
    off = np.random.default_rng(0).normal(size=(12, 5))
    off -= off.mean(axis=0)
    ratio = np.linalg.norm(np.linalg.matrix_power(matrix, 10) @ off) / np.linalg.norm(off)
    assert 9.33e-4 / 2 < ratio < 9.33e-4 * 2
    assert ratio <= contraction(matrix) ** 10


def test_degrees_and_sizes():
    assert len(Ring(2).edges(9, Rng(0))) == 18
    assert len(Torus().edges(12, Rng(0))) == 24
    assert len(Complete().edges(7, Rng(0))) == 21
    for n, degree in ((20, 4), (20, 5), (21, 6)):
        edges = Expander(degree).edges(n, Rng(1))
        assert set(np.bincount(edges.ravel(), minlength=n)) == {degree}
        assert len(components(n, edges)) == 1
    np.testing.assert_allclose(metropolis(5, Complete().edges(5, Rng(0))), np.full((5, 5), 0.2))
    assert contraction(metropolis(5, Complete().edges(5, Rng(0)))) < 1e-12
    expander, ring = (contraction(metropolis(40, g.edges(40, Rng(0)))) for g in (Expander(4), Ring(2)))
    assert expander < ring < 1  # few links, and yet a large gap


def test_random_graphs_follow_their_key():
    for graph in (Expander(3), ErdosRenyi(0.3), Geometric(0.4), TimeVarying(Ring())):
        one, same, other = (graph.edges(16, Rng(key)) for key in (1, 1, 2))
        assert np.array_equal(one, same)
        assert not np.array_equal(one, other)


def test_a_graph_in_parts_is_refused_with_its_parts():
    with pytest.raises(CompositionError, match=r"falls into 2 parts: a, b; c, d .*Ring\(\)"):
        require_connected(EdgeList(((0, 1), (2, 3))), 4, 0, ["a", "b", "c", "d"])
    require_connected(EdgeList(((0, 1), (1, 2), (2, 3))), 4, 0)
    require_connected(TimeVarying(Ring(), 0.1), 10, 0)  # judged over the rounds, by its base
    with pytest.raises(CompositionError, match="falls into 2 parts"):
        require_connected(TimeVarying(EdgeList(((0, 1),))), 3, 0)


def test_matrices_that_do_not_keep_the_mean_are_refused():
    for matrix, fault in (
        (np.ones((2, 3)), "not square"),
        (np.array([[1.5, -0.5], [-0.5, 1.5]]), "negative"),
        (np.array([[0.5, 0.5], [0.4, 0.6]]), "not symmetric"),
        (np.array([[0.5, 0.4], [0.4, 0.6]]), "not stochastic"),
    ):
        with pytest.raises(ConfigError, match=fault):
            check_matrix(matrix)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Ring(0), "neighbours=0"),
        (lambda: Expander(1), "degree=1"),
        (lambda: Expander(5).edges(5, Rng(0)), "degree=5 with 5 nodes"),
        (lambda: Expander(3).edges(7, Rng(0)), "degree=3 with 7 nodes"),
        (lambda: Torus(5).edges(12, Rng(0)), "rows=5 does not divide 12"),
        (lambda: StarGraph(4).edges(3, Rng(0)), "centre=4 of 3"),
        (lambda: ErdosRenyi(0.0), r"probability=0\.0"),
        (lambda: Geometric(-1.0), r"radius=-1\.0"),
        (lambda: TimeVarying(Ring(), 0.0), r"up=0\.0"),
        (lambda: EdgeList(((0, 9),)).edges(3, Rng(0)), r"link \(0, 9\) among 3"),
        (lambda: members_of(5, 3, "x"), "groups=5 of 3 clients"),
        (lambda: members_of(((0, 1), (3,)), 4, "x"), "the groups have 3 clients, but the federation has 4"),
        (lambda: Membership(joins=((0, 2), (0, 4))), "node 0 moves at"),
        (lambda: Membership(leaves=((0, 2), (1, 2))).check(2), "in round 2, no node"),
        (lambda: Membership(joins=((7, 2),)).check(3), "node 7 of 3"),
    ],
)
def test_what_cannot_be_is_refused(make, match):
    with pytest.raises(ConfigError, match=match):
        make()


def test_members_come_and_go():
    schedule = Membership(joins=((2, 3), (1, 5)), leaves=((1, 2), (0, 4)))
    there = {number: schedule.at(number, 3).tolist() for number in range(1, 6)}
    assert there == {1: [0, 1], 2: [0], 3: [0, 2], 4: [2], 5: [1, 2]}
    assert {number: schedule.joined(number, 3).tolist() for number in range(1, 6)} == {
        1: [],
        2: [],
        3: [2],
        4: [],
        5: [1],
    }
    schedule.check(3)


def test_groups_have_no_links_between_them():
    graph = Grouped(Complete(), ((0, 2, 4), (1, 3)), 5)
    assert graph.edges(5, Rng(0)).tolist() == [[0, 2], [0, 4], [2, 4], [1, 3]]
    assert graph.among(np.array([0, 1, 4]), Rng(0)).tolist() == [[0, 2]]  # indices into the members
    assert [m.tolist() for m in members_of(2, 5, "x")] == [[0, 1, 2], [3, 4]]
