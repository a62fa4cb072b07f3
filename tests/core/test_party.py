"""Rosters and views on them: names, roles, positions, keys."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.algebra.rng import hash64
from atoll.core.errors import ConfigError
from atoll.core.requests.party import Names, Parties, Roster, among
from atoll.data.islands import ColumnNames


def test_a_million_names_cost_a_few_megabytes():
    tracemalloc.start()
    roster = Roster(1_000_000)
    cohort = roster.all()[np.arange(0, 1_000_000, 1000)]
    keys = cohort.keys()
    assert roster.position("client-999999") == 999_999
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(keys) == 1000
    assert peak < 30e6  # positions (8 MB), keys (8 MB), a flag each


@given(st.lists(st.integers(0, 20)), st.lists(st.integers(0, 20)))
def test_who_is_among_others(some, others):
    rows = [np.array(row, dtype=np.int64) for row in (some, others)]
    np.testing.assert_array_equal(among(*rows), np.isin(*rows))


@given(st.integers(0, 10**6 - 1))
def test_names_and_positions_are_inverse(i):
    names = Names(10**6)
    assert names.index(names[i]) == i
    assert names[i - 10**6] == names[i]


@pytest.mark.parametrize("alias", ["client-007", "client-٣", "client--1", "client-10", "client-", "clients-1", "7"])
def test_a_name_has_no_aliases(alias):
    with pytest.raises(ConfigError, match="no party is named"):
        Roster(10).position(alias)


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(ConfigError, match=r"'hospitla'\. Did you mean 'hospital'"):
        Roster(["hospital", "clinic"]).position("hospitla")


def test_names_are_unique():
    with pytest.raises(ConfigError, match="two parties are named 'a'"):
        Roster(["a", "b", "a"])
    with pytest.raises(ConfigError, match="another party are both named 'client-3'"):
        Roster(5, others={"client-3": "edge"})


def test_roles():
    roster = Roster(["a", "b"], role="guest", others={"e": "edge", "k": "key-holder", "f": "edge"})
    assert roster.where("edge").names == ["e", "f"]
    assert roster.where("guest").names == ["a", "b"] == roster.all().names
    assert roster.where("nobody").names == []
    assert [(p.name, p.role, p.position) for p in roster.where("key-holder")] == [("k", "key-holder", 3)]
    assert roster.party(roster.position("f")).role == "edge"


def test_keys_are_hashes_of_names_in_any_order():
    roster = Roster(["x", "y", "z"])
    parties = Parties(roster, np.array([2, 0]))
    assert parties.keys().tolist() == [hash64("z"), hash64("x")]
    assert roster.all().keys().tolist() == [hash64(n) for n in "xyz"]


@given(st.lists(st.integers(0, 19), unique=True), st.sets(st.integers(0, 19)))
def test_without_keeps_the_order(positions, out):
    roster = Roster(20)
    left = Parties(roster, np.array(positions, dtype=np.int64)).without(
        Parties(roster, np.array(sorted(out), dtype=np.int64))
    )
    assert left.positions.tolist() == [p for p in positions if p not in out]


def test_views():
    parties = Roster(10).all()
    assert parties[3].name == "client-3"
    assert parties[-2:].names == ["client-8", "client-9"]
    assert parties[np.arange(10) % 2 == 0] == parties[::2]
    assert parties.named("client-4", "client-1").positions.tolist() == [4, 1]
    assert repr(parties) == "Parties(10: client-0, client-1, client-2, ...)"
    assert len({parties[:2], parties[:2], parties[:3]}) == 2


def test_names_of_many_positions_are_those_of_each():
    columns = (ColumnNames(np.arange(5)), ColumnNames(np.arange(3)[::-1], np.array(["x", "y", "z"])))
    given = (Roster(12), Roster(["b", "a"]), Roster(3, others={"judge": "server"}))
    for roster in (*given, *(Roster(names, others={"judge": "server"}) for names in columns)):
        for positions in ([], [0], [1, 0, 1], list(range(len(roster)))):
            at = np.array(positions, dtype=np.int64)
            assert roster.names_of(at) == [roster.name(p) for p in positions]
            assert Parties(roster, at).keys().tolist() == [hash64(roster.name(p)) for p in positions]


def test_names_have_one_order_whoever_lists_them():
    """The oracle sorts by hand: numbers in names count as numbers, and a tie of keys is broken by the text."""
    names = ["site-10", "site-2", "a01", "north", "a1", "client-3", "9", "10", "x" + "1" * 5000]
    wanted = ["9", "10", "a01", "a1", "client-3", "north", "site-2", "site-10", "x" + "1" * 5000]
    for listed in (names, names[::-1], sorted(names)):
        roster = Roster(listed, others={"holder": "key-holder"})
        assert [listed[i] for i in roster.order()] == wanted
        assert roster.all().by_name().names == wanted
    roster = Roster(names, others={"holder": "key-holder"})
    assert roster.all().named("holder", "site-10", "9").by_name().names == ["9", "site-10", "holder"]


def test_a_million_made_names_are_not_sorted():
    parties = Roster(1_000_000).all()
    assert parties.by_name() is parties
    assert parties[np.array([5, 2])].by_name().names == ["client-2", "client-5"]
