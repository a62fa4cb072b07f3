"""The acoustic table: Algorithm 6, and its noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import DataError
from atoll.core.event import Gaussian, NonPrivate
from atoll.crossmodal import TablePlan, TableShare, Utterances, join_table
from atoll.secure.keystream import NoiseStream
from tests.crossmodal.helpers import made_side

EXACT = TablePlan(least=1, clip=4.0, noise=0.0)


def test_a_phones_vector_is_the_mean_over_the_utterances_with_it_each_counted_once():
    frames = [np.full((2, 1), 1.0), np.array([[2.0], [4.0]]), np.full((1, 1), 8.0)]
    rows = Utterances("speech", frames, [[0, 0, 0, 1], [0, 2], [2]], ["a", "b", "a"])
    share = EXACT.build(rows)
    assert share.counts[:4].tolist() == [2, 1, 2, 0]
    assert (share.sums[:3, 0] / share.counts[:3]).tolist() == [2.0, 1.0, 5.5]  # (1 + 3)/2, 1, (3 + 8)/2


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000))
def test_the_order_of_utterances_changes_nothing(seed):
    rows = made_side("speech", 12, seed)
    order = np.random.default_rng(seed).permutation(12)
    one, other = EXACT.build(rows), EXACT.build(rows.take(order))
    assert np.allclose(one.sums, other.sums, rtol=1e-12, atol=1e-12)
    assert np.array_equal(one.counts, other.counts)


def test_phones_of_few_utterances_are_left_out_and_have_the_mean_of_all():
    rows = Utterances(
        "speech", [np.full((1, 2), float(i)) for i in range(6)], [[0, 1]] * 3 + [[0, 2]] * 2 + [[3]], ["a"] * 6
    )
    table = join_table([TablePlan(least=3, clip=1.0, noise=0.0).build(rows)], 39, 2)
    assert table.shape == (40, 2)
    assert np.array_equal(np.flatnonzero(table.any(axis=1)), [1, 2])  # phones 0 and 1; row 0 is padding
    assert not join_table([], 39, 2).any()


def test_with_noise_no_utterance_moves_the_table_farther_than_the_noise_counts_on():
    plan = TablePlan(least=1, clip=0.5, noise=1.0)
    rows = made_side("speech", 20, 3)

    class Silent:
        def normal(self, count, out=None, deviation=1.0):
            return np.zeros(count, dtype=np.float32)

    whole = plan.build(rows, Silent())
    for left in range(20):
        part = plan.build(rows.take([i for i in range(20) if i != left]), Silent())
        moved = np.concatenate([(whole.sums - part.sums).ravel(), 0.5 * (whole.counts - part.counts)])
        assert 0 < np.linalg.norm(moved) <= np.sqrt(2) * 0.5


def test_noise_has_its_deviation_and_is_announced():
    plan = TablePlan(least=1, clip=2.0, noise=3.0)
    rows = made_side("speech", 5, 0, width=50)

    class Silent:
        def normal(self, count, out=None, deviation=1.0):
            return np.zeros(count, dtype=np.float32)

    exact, noisy = plan.build(rows, Silent()), plan.build(rows, NoiseStream(bytes(range(32))))
    drawn = (noisy.sums - exact.sums).ravel()
    assert abs(drawn.std() / (3 * np.sqrt(2) * 2) - 1) < 0.05  # 1,950 draws: three standard errors
    assert plan.event == Gaussian(unit="example", noise_multiplier=3.0, between="add-remove")
    assert isinstance(EXACT.event, NonPrivate)


def test_a_letter_with_anything_else_is_refused():
    share = EXACT.build(made_side("speech", 6, 1))
    good = share.message()
    read = TableShare.read(good, 39, 6, "south")
    assert np.allclose(read.sums, share.sums, rtol=1e-6)
    bad = [
        {**good, "words": np.zeros(3)},
        {"sums": good["sums"]},
        {**good, "sums": good["sums"][:, :2]},
        {**good, "counts": good["counts"] * np.nan},
        None,
    ]
    for letter in bad:
        with pytest.raises(DataError, match="the table of 'south'"):
            TableShare.read(letter, 39, 6, "south")
