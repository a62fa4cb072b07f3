"""Laws of aggregates: a total is a commutative monoid, and a block adds up to its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import (
    Aggregate,
    Mean,
    Parts,
    Sum,
    Total,
    Totals,
    Vote,
    add_into,
    merge_totals,
    reorder_parts,
    sign_parts,
)
from atoll.core.errors import CompositionError

KINDS = ["mean", "sum", "vote"]
values = arrays(np.float64, (3, 2), elements=st.floats(-1e3, 1e3, allow_nan=False))
weights = st.floats(0.125, 64.0)


def reply(kind: str, value: Any, weight: float) -> Aggregate:
    tree = {"w": value, "b": value[0]}
    return {"mean": Mean(tree, examples=weight), "sum": Sum(tree), "vote": Vote(tree)}[kind]


def same(a: Total, b: Total) -> None:
    assert (a.kind, a.n, a.role) == (b.kind, b.n, b.role)
    np.testing.assert_allclose(a.weight, b.weight, rtol=1e-12)
    for x, y in zip(T.leaves(a.value), T.leaves(b.value), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9)


@given(st.sampled_from(KINDS), values, values, values, weights, weights, weights)
def test_totals_add_up_in_any_order_and_grouping(kind, a, b, c, wa, wb, wc):
    x, y, z = (reply(kind, v, w).total() for v, w in ((a, wa), (b, wb), (c, wc)))
    same(x.merge(y), y.merge(x))
    same(x.merge(y).merge(z), x.merge(y.merge(z)))


@given(st.sampled_from(KINDS), st.lists(st.tuples(values, weights), min_size=1, max_size=5), st.data())
def test_a_block_adds_up_to_its_rows(kind, rows, data):
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
    keep[data.draw(st.integers(0, len(rows) - 1))] = True
    stacked = reply(kind, np.stack([v for v, _ in rows]), 1.0)
    stacked = stacked.with_value({"w": np.stack([v for v, _ in rows]), "b": np.stack([v[0] for v, _ in rows])})
    if kind == "mean":
        stacked = Mean(stacked.value, examples=np.array([w for _, w in rows]))
    singles = [reply(kind, v, w).total() for (v, w), kept in zip(rows, keep, strict=True) if kept]
    one_by_one = merge_totals({"u": s} for s in singles)["u"]
    same(stacked.block_sum(keep.astype(float)), one_by_one)


@given(st.lists(st.tuples(values, weights), min_size=1, max_size=5))
def test_a_mean_is_the_weighted_mean(rows):
    total = merge_totals({"u": Mean(v, examples=w).total()} for v, w in rows)["u"]
    expected = np.average([v for v, _ in rows], axis=0, weights=[w for _, w in rows])
    np.testing.assert_allclose(total.result(), expected, rtol=1e-9, atol=1e-9)


def test_a_client_that_is_left_out_cannot_spread_its_nan():
    block = np.array([[1.0, 2.0], [np.nan, np.inf], [3.0, 4.0]])
    keep = np.array([1.0, 0.0, 1.0])
    np.testing.assert_array_equal(Sum(block).block_sum(keep).value, [4.0, 6.0])
    np.testing.assert_array_equal(Mean(block, examples=np.ones(3)).block_sum(keep).result(), [2.0, 3.0])
    assert [p.value.tolist() for p in Parts(block).block_sum(keep).value] == [[1.0, 2.0], [3.0, 4.0]]


def test_a_vote_is_the_sign_of_the_sum_of_signs():
    totals = [Vote(np.array([5.0, -1.0, 0.5, 0.0])), Vote(np.array([-9.0, -7.0, 0.1, 0.0])), Vote(np.ones(4))]
    merged = merge_totals({"u": v.total()} for v in totals)["u"]
    np.testing.assert_array_equal(merged.result(), [1.0, -1.0, 1.0, 1.0])


def test_nothing_weighs_nothing():
    total = Mean(np.ones(2), examples=0.0).total()
    np.testing.assert_array_equal(total.result(), [0.0, 0.0])


@pytest.mark.parametrize("weight", [3, 3.0, np.float64(3.0), np.int64(3)])
def test_weighting_keeps_the_dtype_of_a_leaf(weight):
    value = {"w": np.ones(2, np.float32)}
    assert Mean(value, examples=weight).total().value["w"].dtype == np.float32
    assert Mean(value, examples=weight).total().result()["w"].dtype == np.float32


def test_torch_leaves_add_up_as_numpy_leaves_do():
    torch = pytest.importorskip("torch")
    block = np.arange(12.0).reshape(3, 4)
    weights = np.array([1.0, 2.0, 5.0])
    keep = np.array([1.0, 0.0, 1.0])
    ours = Mean(block, examples=weights).block_sum(keep).result()
    theirs = Mean(torch.tensor(block), examples=weights).block_sum(keep).result()
    np.testing.assert_allclose(theirs.numpy(), ours, rtol=1e-12)


def test_kinds_do_not_mix():
    with pytest.raises(CompositionError, match=r"a total of kind 'mean' cannot be merged with one of kind 'sum'"):
        Mean(np.ones(1)).total().merge(Sum(np.ones(1)).total())


def test_parts_are_signed_and_put_in_order():
    totals = merge_totals([{"p": Parts(np.array([float(k)])).total()} for k in (7, 3, 5)])
    signed = sign_parts(totals, [7, 3, 5])
    ordered = reorder_parts(signed["p"], [1, 2, 0])
    assert [(p.sender, p.value.item()) for p in ordered.value] == [(3, 3.0), (5, 5.0), (7, 7.0)]
    total = Sum(np.ones(1)).total()
    assert reorder_parts(total, [0]) is total


def test_sums_in_memory_of_their_own_leave_what_came_as_it_was():
    for shape in ((), (3,)):
        told = [np.full(shape, value) for value in (1.0, 2.0, 4.0)]
        for one in told:
            one.flags.writeable = False  # as a decoded message is
        sums: Totals = {}
        for one in told:
            add_into(sums, {"x": Total("sum", one, 1.0, 1, "side")})
        assert np.array_equal(sums["x"].value, np.full(shape, 7.0))
        assert [float(np.max(one)) for one in told] == [1.0, 2.0, 4.0]
