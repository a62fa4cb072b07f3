"""Whose copy of a state is up to date: what the Ray engine may leave out of a request."""

from __future__ import annotations

import numpy as np

from atoll.engines.ray import Copies

PEOPLE = np.arange(4)


def settle(copies, worker, people=PEOPLE, slots=("a",)):
    with copies.lend(list(slots), people) as loan:
        loan.place([(people, worker)])


def held(copies, worker, people=PEOPLE, slots=("a",)):
    """Asked by a request that then fails: whoever it concerns is nobody's afterwards."""
    with copies.lend(list(slots), people) as loan:
        return loan.find_held(worker, people).tolist()


def test_a_request_that_is_kept_makes_holders():
    copies = Copies()
    assert held(copies, 7) == [False] * 4
    settle(copies, 7)
    assert held(copies, 8) == [False] * 4  # and takes them out of the books


def test_holders_are_found_in_any_order_and_in_part():
    copies = Copies()
    settle(copies, 7, np.array([3, 0]))
    with copies.lend(["a"], np.array([2, 3, 0])) as loan:
        assert loan.find_held(7, np.array([0, 2])).tolist() == [True, False]
        assert loan.find_held(7, np.array([3])).tolist() == [True]


def test_a_copy_counts_where_every_slot_has_it():
    copies = Copies()
    settle(copies, 7, slots=("a", "a//memory"))
    copies.forget("a//memory")
    assert held(copies, 7, slots=("a", "a//memory")) == [False] * 4


def test_a_request_that_fails_leaves_nobody_as_a_holder():
    copies = Copies()
    settle(copies, 7)
    assert held(copies, 7) == [True] * 4
    assert held(copies, 7) == [False] * 4


def test_requests_that_overlap_in_a_slot_make_no_holders():
    copies = Copies()
    with copies.lend(["a"], PEOPLE) as outer:
        settle(copies, 8)
        outer.place([(PEOPLE, 7)])
    assert held(copies, 7) == held(copies, 8) == [False] * 4
    with copies.lend(["a"], PEOPLE):
        settle(copies, 8, slots=("b",))
    assert held(copies, 8, slots=("b",)) == [True] * 4


def test_a_slot_that_is_dropped_takes_the_slots_inside_it_along():
    copies = Copies()
    for slot in ("a", "a/b", "ab"):
        settle(copies, 7, slots=(slot,))
    assert copies.forget("a")
    assert not copies.forget("a")
    assert held(copies, 7, slots=("a/b",)) == [False] * 4
    assert held(copies, 7, slots=("ab",)) == [True] * 4
