"""The graph pass that accumulates into weights, and the layout of mini-batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from atoll.algorithms import FedAvg
from atoll.learn.algorithm import Stragglers
from atoll.learn.local.update import batch_rows, count_steps
from atoll.torch.blocks.decide import StepCost, block_size, favour_mode, unroll_of
from atoll.torch.blocks.schedule import cut_blocks, pad_width, schedule
from atoll.torch.tracing.fuse import find_mutated, fuse_updates

aten = torch.ops.aten
SHAPES = {"matrix": ((4, 3), (5, 4), (5, 3)), "block": ((2, 4, 3), (2, 5, 4), (2, 5, 3))}


def _update(w: Any, a: Any, b: Any) -> Any:
    return w - 0.5 * (a.transpose(-1, -2) @ b)


def _turned(w: Any, a: Any, b: Any) -> Any:
    return w + (b.transpose(-1, -2) @ a).transpose(-1, -2) * 0.25


@pytest.mark.parametrize("update", [_update, _turned])
@pytest.mark.parametrize("shapes", list(SHAPES))
@pytest.mark.parametrize("owned", [set(), {0}], ids=["kept", "owned"])
def test_an_update_becomes_one_accumulating_product(update: Any, shapes: str, owned: set[int]) -> None:
    draw = torch.Generator().manual_seed(0)
    w, a, b = (torch.randn(s, generator=draw) for s in SHAPES[shapes])
    gm = make_fx(update, tracing_mode="fake")(w, a, b)
    assert fuse_updates(gm, owned) == 1
    targets = {node.target for node in gm.graph.nodes}
    assert targets & {aten.addmm.default, aten.addmm_.default, aten.baddbmm.default, aten.baddbmm_.default}
    assert find_mutated(gm) == owned
    gm.recompile()
    want = update(w, a, b)
    torch.testing.assert_close(gm(w, a, b), want)
    torch.testing.assert_close(w, want) if owned else None


def _corrected(w: Any, a: Any, b: Any) -> Any:
    return w - 0.5 * (a.transpose(-1, -2) @ b + (w * w + 1.0))


def _pulled_and_turned(w: Any, a: Any, b: Any) -> Any:
    return w + ((w - 1.0) - ((b.transpose(-1, -2) @ a).transpose(-1, -2) - w.abs())) * 0.25


@pytest.mark.parametrize("update", [_corrected, _pulled_and_turned])
@pytest.mark.parametrize("shapes", list(SHAPES))
@pytest.mark.parametrize("owned", [set(), {0}], ids=["kept", "owned"])
def test_what_is_added_to_a_gradient_goes_into_the_weight_first(update: Any, shapes: str, owned: set[int]) -> None:
    draw = torch.Generator().manual_seed(0)
    w, a, b = (torch.randn(s, generator=draw) for s in SHAPES[shapes])
    before = w.clone()
    gm = make_fx(update, tracing_mode="fake")(w, a, b)
    assert fuse_updates(gm, owned) == 1
    targets = {node.target for node in gm.graph.nodes}
    assert not targets & {aten.mm.default, aten.bmm.default}  # no gradient is made
    assert targets & {aten.addmm_.default, aten.baddbmm_.default}
    assert find_mutated(gm) == owned
    gm.recompile()
    want = update(w, a, b)
    torch.testing.assert_close(gm(w, a, b), want)
    torch.testing.assert_close(w, want if owned else before)


def _corrected_and_read_after(w: Any, a: Any, b: Any) -> Any:
    return w - 0.5 * (a.t() @ b + w), w.sum()


def _read_after(w: Any, a: Any, b: Any) -> Any:
    new = w - 0.5 * (a.t() @ b)
    return new, w.t().sum()


def _seen_before_and_read_after(w: Any, a: Any, b: Any) -> Any:
    part = w.split(1)[0]
    new = w - 0.5 * (a.t() @ b)
    return new, part.sum()


@pytest.mark.parametrize("fn", [_read_after, _corrected_and_read_after, _seen_before_and_read_after])
def test_a_weight_that_is_read_later_is_not_overwritten(fn: Any) -> None:
    draw = torch.Generator().manual_seed(0)
    w, a, b = (torch.randn(s, generator=draw) for s in SHAPES["matrix"])
    gm = make_fx(fn, tracing_mode="fake")(w, a, b)
    assert fuse_updates(gm, {0}) == 1
    assert find_mutated(gm) == set()
    gm.recompile()
    for got, want in zip(gm(w, a, b), fn(w, a, b), strict=True):
        torch.testing.assert_close(got, want)


def test_a_product_that_is_used_twice_is_left_alone() -> None:
    def fn(w: Any, a: Any, b: Any) -> Any:
        gradient = a.t() @ b
        return w - 0.5 * gradient, gradient

    w, a, b = (torch.ones(s) for s in SHAPES["matrix"])
    assert fuse_updates(make_fx(fn, tracing_mode="fake")(w, a, b), {0}) == 0


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 13), min_size=1, max_size=5),
    st.one_of(st.none(), st.integers(1, 15)),
    st.integers(2, 4),
    st.one_of(st.none(), st.integers(2, 7)),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from([None, Stragglers(0.5), Stragglers(1.0)]),
)
def test_the_layout_is_that_of_the_reference(
    sizes: list[int], batch: int | None, epochs: int, steps: int | None, empty: int, exact: bool, late: Any
) -> None:
    algorithm = FedAvg(batch_size=batch, epochs=epochs, steps=steps, stragglers=late)
    offsets = np.cumsum([0, *sizes])
    keys = np.arange(len(sizes), dtype=np.uint64) * np.uint64(977)
    plan = schedule(np.arange(len(sizes)), offsets, keys, algorithm, slots=len(sizes) + empty, exact=exact)
    real = np.ones(plan.rows.shape, bool) if plan.weights is None else plan.weights > 0
    counted = [count_steps(algorithm, n, int(k)) for n, k in zip(sizes, keys, strict=True)]
    assert plan.steps.tolist() == counted + [0] * empty
    for client, n in enumerate(sizes):
        wanted = batch_rows(algorithm, n, int(keys[client]))
        for step, rows in enumerate(wanted):
            got = plan.rows[client, step][real[client, step]] - offsets[client]
            assert got.tolist() == rows.tolist()
            assert plan.active is None or plan.active[client, step]
        if plan.active is not None:
            assert not plan.active[client, len(wanted) :].any()
    assert sum(sizes) == 0 or plan.rows.max() < sum(sizes)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.integers(1, 9))
def test_blocks_hold_every_client_once(sizes: list[int], block: int) -> None:
    cut = list(cut_blocks(np.array(sizes), block))
    assert sorted(np.concatenate(cut).tolist()) == list(range(len(sizes)))
    assert max(len(b) for b in cut) <= block


def test_few_widths_that_waste_little() -> None:
    widths = [pad_width(n) for n in range(1, 200)]
    assert all(n <= w <= 1.25 * n + 1 for n, w in zip(range(1, 200), widths, strict=True))
    assert len(set(widths)) <= 32


def test_the_rules_of_choice() -> None:
    cpu = torch.device("cpu")
    # The three workloads of the benchmarks, by hand: products and convolutions of one step of ten examples.
    linear = StepCost(2 * 2 * 10 * 60 * 10, 2e4, False)
    mlp = StepCost(2 * 2 * 10 * (784 * 196 + 196 * 62) + 2 * 10 * 196 * 62, 3e6, False)
    assert favour_mode(linear, cpu) == "vector"
    assert favour_mode(mlp, cpu) == "single"
    assert favour_mode(StepCost(1e4, 1e4, True), cpu) == "single"
    assert favour_mode(StepCost(2e6, 1e6, False), cpu) == ""
    assert favour_mode(mlp, torch.device("cuda")) == "vector"
    assert block_size(linear, 25, cpu) == 25
    assert block_size(linear, 100, cpu) == 50
    assert block_size(StepCost(1e6, 1e6, False), 100, cpu) == 8
    assert unroll_of(linear, "vector", 25, 25, True) == 5
    assert unroll_of(linear, "vector", 25, 7, True) == 7
    assert unroll_of(linear, "vector", 25, 25, False) == 1
    assert unroll_of(StepCost(7e8, 1e8, True), "single", 1, 5, True) == 1
