"""`PartialSum` is a monoid: whoever adds up, in whatever groups, no field of any part is lost."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core import message as M
from atoll.core.algebra.aggregate import Mean, Parts, Sum, Total, Vote
from atoll.core.errors import CompositionError, TaskError
from atoll.core.persistence.state_table import States
from atoll.core.requests.request import PartialSum, Reply, TaskResult
from atoll.core.requests.wire import pack_folded, unpack_folded


def total_of(position: int) -> dict[str, Total]:
    """Totals of one reply. Whole numbers add up exactly, so that laws hold to the bit."""
    tree = {"w": np.arange(3.0) + position, "b": [np.float64(position)]}
    reply = {"mean": Mean(tree, examples=2.0), "sum": Sum(np.array([position, 1])), "vote": Vote(tree["w"] - 2)}
    return {name: one.total() for name, one in {**reply, "parts": Parts(tree, examples=1.0)}.items()}


def states_of(position: int) -> States:
    states = States({position: {"seen": position}})
    states.add_block(np.array([position + 100]), {"seen": np.array([position])})
    return states


MADE = {
    "totals": total_of,
    "senders": lambda position: np.array([position]),
    "nbytes": lambda position: np.array([10 + position]),
    "rejected": lambda position: {position + 20: f"why {position}"},
    "errors": lambda position: {position + 40: TaskError(f"error {position}")},
    "counts": lambda position: {"words": position + 1, f"clamped-{position}": 1},
    "inputs": lambda position: {"mean": {str(position): float(position)}},
    "told": lambda position: {"mean": {"words": position, "n": 1, "version": position}},
    "exact": lambda position: True,
    "outliers": lambda position: {position: f"far {position}"},
    "left": lambda position: {"main": states_of(position), f"own-{position}": states_of(position)},
    "kept": lambda position: [TaskResult(Reply(position, {"x": 1}), sealed=True)],
    "promised": lambda position: {position: ((b"m" * 16, bytes([position]) * 16),)},
}
"""What each field holds of one party. A new field needs a line here, and a rule of `merge`."""
LATEST = {"inputs", "told"}


def part_of(position: int) -> PartialSum:
    return PartialSum(**{name: make(position) for name, make in MADE.items()})


def shown(value):
    """A field in a form that can be compared."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, States):
        return {position: shown(state) for position, state in value.by_position().items()}
    if isinstance(value, Total):
        parts = [(p.value, p.weight, p.sender) for p in value.value] if value.kind == "parts" else value.value
        return (
            value.kind,
            M.fingerprint([parts] if value.kind != "parts" else [list(p) for p in parts]),
            value.weight,
            value.n,
        )
    if isinstance(value, TaskResult):
        return (value.reply.party, value.sealed)
    if isinstance(value, Exception):
        return str(value)
    if isinstance(value, dict):
        return {key: shown(one) for key, one in value.items()}
    return [shown(one) for one in value] if isinstance(value, list | tuple) else value


def whole(sum_: PartialSum):
    return {one.name: shown(getattr(sum_, one.name)) for one in dataclasses.fields(PartialSum)}


some = st.lists(st.integers(0, 9), max_size=6, unique=True)


def merged(positions) -> PartialSum:
    return PartialSum.zero().merge(*map(part_of, positions))


def test_every_field_is_tried_here_and_has_a_rule():
    names = {one.name for one in dataclasses.fields(PartialSum)}
    assert names == set(MADE), "a field of PartialSum without a value in MADE"
    zero, one = whole(PartialSum.zero()), whole(part_of(3))
    assert {name for name in names - {"exact"} if zero[name] == one[name]} == set(), "a field with nothing in it"


@given(some)
def test_zero_changes_nothing(positions):
    one = merged(positions)
    assert (
        whole(PartialSum.zero().merge(one)) == whole(one) == whole(one.merge(PartialSum.zero())) == whole(one.merge())
    )


@given(st.permutations(range(8)), st.integers(0, 8), st.integers(0, 8))
def test_how_parts_are_grouped_does_not_matter(order, i, j):
    i, j = sorted((i, j))
    a, b, c = merged(order[:i]), merged(order[i:j]), merged(order[j:])
    assert whole(a.merge(b).merge(c)) == whole(a.merge(b.merge(c))) == whole(a.merge(b, c)) == whole(merged(order))


@given(some)
def test_no_field_of_any_part_is_lost(positions):
    sum_ = whole(merged(positions))
    for position in positions:
        part = whole(part_of(position))
        for name in set(MADE) - LATEST - {"exact", "totals"}:
            inside = sum_[name]
            if name == "counts":
                assert inside["words"] == sum(p + 1 for p in positions)
                assert inside[f"clamped-{position}"] == 1
            elif name == "left":
                assert all(part["left"][slot].items() <= inside[slot].items() for slot in part["left"])
            elif isinstance(inside, dict):
                assert part[name].items() <= inside.items()
            else:
                assert all(one in inside for one in part[name])
    for name in LATEST:
        assert sum_[name] == (whole(part_of(positions[-1]))[name] if positions else {})


@given(some, st.randoms(use_true_random=False))
def test_parts_may_come_in_any_order_and_are_put_into_that_of_the_cohort(positions, random):
    cohort = np.array([*positions, 11, 12], dtype=np.int64)  # two of the cohort do not reply
    shuffled = list(positions)
    random.shuffle(shuffled)
    there, here = merged(shuffled).sign().arrange(cohort), merged(positions).sign()
    for name in ("totals", "senders", "nbytes"):
        assert whole(there)[name] == whole(here)[name]
    for name in ("rejected", "errors", "counts", "outliers", "left", "promised"):
        assert whole(there)[name] == whole(here)[name], name  # dicts are equal in any order


def test_a_party_asked_twice_keeps_its_replies_in_their_order():
    first, other, second = part_of(5), part_of(3), part_of(5)
    second.totals["parts"] = Parts(np.array([7.0])).total()
    found = other.merge(first, second).arrange(np.array([5, 3, 5]))
    assert found.senders.tolist() == [5, 3, 5]
    assert [
        np.size(part.value["w"]) if isinstance(part.value, dict) else 1 for part in found.totals["parts"].value
    ] == [3, 3, 1]


@given(some)
def test_the_parts_stay_as_they_are(positions):
    parts = [part_of(position) for position in positions]
    before = copy.deepcopy([whole(part) for part in parts])
    PartialSum.zero().merge(*parts)
    assert [whole(part) for part in parts] == before


def test_words_are_exact_only_if_all_are():
    assert PartialSum.zero().exact
    assert not dataclasses.replace(part_of(1), exact=False).merge(part_of(2)).exact


def test_other_kinds_under_one_name_are_refused():
    other = PartialSum({"sum": Mean(np.array([1, 2])).total()}, np.array([4]))
    with pytest.raises(CompositionError, match="kind 'sum' cannot be merged with one of kind 'mean'"):
        part_of(1).merge(other)


@given(some)
def test_a_worker_sends_every_field_that_an_engine_fills(positions):
    """Counts, inputs and outliers are what the server's own reducers and sites find: no worker may say them."""
    sum_ = merged(positions)
    there = whole(unpack_folded(M.decode(M.encode(pack_folded(sum_)))))
    for name in set(MADE) - {"counts", "inputs", "told", "exact", "outliers"}:
        if name == "errors":
            assert there[name].keys() == whole(sum_)[name].keys()
        else:
            assert there[name] == whole(sum_)[name], name
