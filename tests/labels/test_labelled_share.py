"""Mini-batches that hold enough labelled rows: the same ones on every engine, and none where nothing is to be done."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.algorithms import FedAvg, LocalSAGA
from atoll.core.errors import ConfigError
from atoll.labels import FixMatch, SemiFL, Supervised
from atoll.learn.local.update import batch_rows, labelled_batches, share_of, topped_up
from atoll.torch.blocks.pool import Pool
from atoll.torch.blocks.schedule import LabelledRows, Orders, schedule
from atoll.views import weak
from tests.support.label_toys import gap, images, islands, same, trained

pytestmark = pytest.mark.usefixtures("labels_unchecked")
WORK: dict[str, Any] = {"lr": 0.1, "steps": 3, "batch_size": 8}


def fixmatch(**changed: Any) -> FixMatch:
    return FixMatch(**{"tau": 0.3, **WORK, **changed})


@given(
    rows=st.integers(1, 40),
    known=st.integers(0, 40),
    size=st.integers(1, 12),
    share=st.floats(0.0, 1.0),
    key=st.integers(0, 2**63),
)
@settings(max_examples=60, deadline=None)
def test_a_mini_batch_holds_its_share_of_labelled_rows_and_no_row_twice(
    rows: int, known: int, size: int, share: float, key: int
) -> None:
    labelled = np.random.default_rng(key).permutation(rows) < known
    plain = batch_rows(FedAvg(batch_size=size, steps=9), rows, key)
    made = labelled_batches(plain, labelled, share, key)
    for before, after in zip(plain, made, strict=True):
        assert len(set(after.tolist())) == len(after) == len(before)
        assert labelled[after].sum() >= min(np.ceil(share * len(after) - 1e-9), labelled.sum())
        # A mini-batch that held enough stays as it was; in the others, only unlabelled rows leave.
        gone = np.setdiff1d(before, after)
        assert not labelled[gone].any()
        assert len(gone) == max(labelled[after].sum() - labelled[before].sum(), 0)
        assert np.array_equal(before[after == before], after[after == before])


def test_labelled_rows_take_turns() -> None:
    labelled = np.arange(400) < 6
    orders = np.arange(6, 390).reshape(48, 8)
    made = topped_up(orders, labelled, 0.25, 7)
    shown = np.bincount(made[labelled[made]], minlength=6)
    assert shown.tolist() == [16] * 6
    assert not np.array_equal(made, topped_up(orders, labelled, 0.25, 8))


def test_without_a_labelled_row_or_without_another_one_nothing_changes() -> None:
    orders = np.arange(12).reshape(3, 4)
    for labelled in (np.zeros(12, bool), np.ones(12, bool)):
        assert topped_up(orders, labelled, 0.5, 1) is orders


@pytest.mark.parametrize("sizes", [(24, 24, 24), (20, 20), (3, 25, 40, 0, 9)])
def test_blocks_lay_out_the_mini_batches_of_single_clients(sizes: tuple[int, ...]) -> None:
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    labelled = np.random.default_rng(2).random(offsets[-1]) < 0.15
    column = torch.from_numpy(labelled)
    pool = Pool({"x": column, "y": column, "labelled": column}, labelled, offsets)
    algorithm = fixmatch(steps=7, labelled_share=0.4)
    keys = np.arange(5, 5 + len(sizes)).astype(np.uint64)
    share = LabelledRows.of(pool, algorithm)
    members = np.arange(len(sizes))[::-1]
    plans = [
        schedule(members, offsets, keys, algorithm, labelled=share),
        Orders(members, offsets, keys, algorithm, share).rectangle(len(members) + 1, (0, 7), 8),
    ]
    for plan in plans:
        weights = np.ones(plan.rows.shape) if plan.weights is None else plan.weights
        for slot, client in enumerate(members.tolist()):
            own = labelled[offsets[client] : offsets[client + 1]]
            batches = labelled_batches(batch_rows(algorithm, len(own), int(keys[client])), own, 0.4, int(keys[client]))
            laid = [r[w > 0] - offsets[client] for r, w in zip(plan.rows[slot], weights[slot], strict=True)]
            assert all(np.array_equal(a, b) for a, b in zip(batches, laid, strict=False))
            assert sum(map(len, batches)) == sum(map(len, laid))


@pytest.mark.slow
def test_blocks_of_clients_train_as_single_ones() -> None:
    few = islands(images(share=0.1))
    one, many = (trained(fixmatch(labelled_share=0.5), few, engine=engine) for engine in ("inline", "batched"))
    assert gap(one, many) < 1e-5
    assert gap(one, trained(fixmatch(labelled_share=0.0), few)) > 1e-4


@pytest.mark.network
def test_processes_train_as_one() -> None:
    few = islands(images(share=0.1))
    one, many = (trained(fixmatch(), few, engine=engine) for engine in ("inline", "processes"))
    assert gap(one, many) < 1e-5


def test_what_a_hidden_label_holds_is_out_of_reach() -> None:
    few = [islands(images(share=0.1, garbage=seed)) for seed in (5, 6)]
    assert same(*(trained(fixmatch(labelled_share=0.5), one) for one in few))


@pytest.mark.slow
def test_without_a_label_or_with_all_of_them_the_share_changes_nothing() -> None:
    for share in (0.0, 2.0):
        data = islands(images(share=share))
        assert same(*(trained(fixmatch(labelled_share=s), data) for s in (0.0, 0.5)))


def test_without_weight_semifl_is_labelled_rows_alone_in_the_same_mini_batches_to_the_bit() -> None:
    few = islands(images(share=0.1))
    semi = SemiFL(labels_at="clients", weight=0.0, tau=0.3, **WORK)
    assert same(trained(semi, few), trained(Supervised(view=weak("images"), labelled_share=0.125, **WORK), few))


def test_mini_batches_that_an_algorithm_fixes_stay() -> None:
    assert share_of(fixmatch()) == 0.125
    assert share_of(FixMatch(base=LocalSAGA())) == 0.0
    assert share_of(Supervised()) == 0.0


def test_a_share_beyond_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"labelled_share=6"):
        fixmatch(labelled_share=6)
