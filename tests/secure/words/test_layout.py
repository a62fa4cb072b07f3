"""Layouts and the fixed-point codec: exact sums, clamped numbers that are counted, and refusals by name."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.algebra.aggregate import Mean, Parts, Sum, Vote, merge_totals
from atoll.core.errors import CompositionError, DataError, MessageError
from atoll.core.message import Words
from atoll.secure.words import FixedPoint, WordLayout


def totals_of(value, weight, kind="mean", role="update"):
    made = {
        "mean": Mean(value, examples=weight, role=role),
        "sum": Sum(value, role=role),
        "vote": Vote(value, role=role),
    }
    return {"x": made[kind].total()}


def summed(rows, codec, bound=None, parties=None):
    """Encode each party's totals, add up modulo 2^p, decode."""
    layouts = [WordLayout.of(row, codec, parties or len(rows), bound) for row in rows]
    assert len({layout.fingerprint for layout in layouts}) == 1
    lanes = [layout.encode(row) for layout, row in zip(layouts, rows, strict=True)]
    sums = {
        lane: np.sum([one[lane].view(np.ndarray) for one in lanes], axis=0, dtype=lanes[0][lane].dtype)
        for lane in lanes[0]
    }
    return layouts[0], layouts[0].decode(sums, len(rows))


@given(st.integers(2, 9), st.integers(4, 40), st.integers(0, 16), st.sampled_from(["mean", "sum"]), st.integers(0, 999))
def test_the_sum_is_the_rounded_numbers_to_the_bit(n, value_bits, weight_bits, kind, seed):
    """Whatever p: the sum of words is the sum of the parties' whole numbers, counted with Python's integers."""
    rng = np.random.default_rng(seed)
    values = rng.uniform(-3, 3, size=(n, 7))
    weights = rng.integers(1, 100, size=n).astype(float)
    codec = FixedPoint(value_bits=value_bits, weight_bits=weight_bits, max_weight=100.0, value_range=4.0)
    rows = [totals_of(x, w, kind) for x, w in zip(values, weights, strict=True)]
    layout, decoded = summed(rows, codec)
    unit = 2.0 ** (3 - value_bits + (7 - weight_bits if kind == "mean" else 0))
    numbers = [[round(x / unit) for x in (row["x"].value).tolist()] for row in rows]
    limit = 2 ** (value_bits + (weight_bits if kind == "mean" else 0) - 1) - 1
    expected = [sum(max(-limit, min(limit, q)) for q in column) * unit for column in zip(*numbers, strict=True)]
    assert decoded.totals["x"].value.tolist() == expected
    assert decoded.totals["x"].weight == (weights.sum() if kind == "mean" else n)
    assert decoded.clamped == sum(abs(q) > limit for row in numbers for q in row)
    assert str(max(8, value_bits + (weight_bits if kind == "mean" else 0) + (n - 1).bit_length())) in layout.lengths


def test_a_sum_at_its_limit_does_not_overflow():
    """p is as small as it may be: n numbers at the limit, of either sign, come back."""
    for n in (2, 3, 4, 5, 8, 9, 64, 65):
        for sign in (1, -1):
            rows = [totals_of(np.full(3, sign * 9.0, np.float32), 1.0, "sum")] * n
            layout, decoded = summed(rows, FixedPoint(value_bits=8, value_range=8.0))
            assert layout.lengths[str(max(8, 8 + (n - 1).bit_length()))] == 3
            assert decoded.totals["x"].value.tolist() == [sign * n * 127 / 16] * 3
            assert decoded.clamped == 3 * n


def test_dtypes_shapes_kinds_and_roles_come_back():
    def reply(k):
        return {
            "w": Mean({"a": np.full((2, 3), k, np.float32), "b": [np.float64(k)]}, examples=k),
            "n": Sum(np.int64(k) << 40),
            "deep": Sum({"empty": np.zeros((0, 2), np.float32)}),
            "v": Vote(np.array([k - 2.0, 1.0])),
            "loss": Mean(np.float64(k / 3), examples=k, role="metric"),
        }

    rows = [{name: a.total() for name, a in reply(k).items()} for k in (1, 2, 3)]
    plain = merge_totals(rows)
    layout, decoded = summed(rows, FixedPoint())
    assert set(layout.lengths) == {"8", "64"}
    for name, total in plain.items():
        ours = decoded.totals[name]
        assert (ours.kind, ours.role, ours.n, ours.weight) == (total.kind, total.role, total.n, total.weight)
    assert decoded.totals["n"].value == 6 << 40
    assert decoded.totals["w"].value["a"].dtype == np.float32
    assert decoded.totals["w"].value["a"].tolist() == plain["w"].value["a"].tolist()
    assert decoded.totals["loss"].value == pytest.approx(plain["loss"].value, abs=3 * 2**-25)
    assert decoded.totals["v"].value.tolist() == [0, 3]


@given(st.integers(1, 6), st.booleans())
def test_a_block_is_one_client_after_another(count, bounded):
    rng = np.random.default_rng(count)
    rows = [{"x": Mean({"a": rng.normal(size=(2, 2)).astype(np.float32) * 3}, examples=float(k + 1)).total(),
             "c": Sum(np.int64(k)).total()} for k in range(count)]  # fmt: skip
    block = {
        "x": Mean({"a": np.stack([r["x"].value["a"] for r in rows])}).block_totals(),
        "c": Sum(np.arange(count)).block_totals(),
    }
    block["x"].value["a"][:] = np.stack([r["x"].value["a"] for r in rows])
    block["x"].weight[:] = [r["x"].weight for r in rows]
    codec, bound = FixedPoint(value_bits=6, max_weight=8.0), 2.0 if bounded else None
    layout = WordLayout.of(block, codec, 9, bound, block=True)
    assert layout.fingerprint == WordLayout.of(rows[0], codec, 9, bound).fingerprint
    made = layout.encode_block(block)
    for i, row in enumerate(rows):
        assert {lane: w.tolist() for lane, w in layout.encode(row).items()} == {
            lane: w[i].tolist() for lane, w in made.lanes.items()
        }


def test_words_of_a_stage_keep_their_codes_and_length():
    rows = [{"x": Sum(Words.of(np.array([250, k]), 9)).total()} for k in (7, 300)]
    layout, decoded = summed(rows, FixedPoint())
    assert layout.lengths == {"9": 2}
    total = decoded.totals["x"].value
    assert (total.bits, total.reduced().tolist()) == (9, [500, 307])


def test_what_does_not_fit_is_refused_by_name():
    loss = {"loss": Sum(np.float64(1e20), role="metric").total()}
    with pytest.raises(DataError, match=r"'loss' is above .* in a sum of 8"):
        WordLayout.of(loss, FixedPoint(), 8).encode(loss, "b")
    with pytest.raises(DataError, match=r"the weight 300 of 'x' is above max_weight=256 .*set max_weight=512"):
        WordLayout.of(totals_of(np.ones(2), 300.0), FixedPoint(max_weight=256.0), 3).encode(
            totals_of(np.ones(2), 300.0), "a"
        )
    with pytest.raises(DataError, match=r"above .* a sum of 4"):
        WordLayout.of({"n": Sum(np.int64(2**62)).total()}, FixedPoint(), 4).encode({"n": Sum(np.int64(2**62)).total()})


def test_what_cannot_be_laid_out_is_refused_with_numbers():
    with pytest.raises(
        CompositionError,
        match=r"40 value bits, 20 weight bits and a sum of 100 parties need words of 67 bits.*value_bits=37",
    ):
        WordLayout.of(totals_of(np.ones(2), 1.0), FixedPoint(value_bits=40, weight_bits=20), 100, 1.0)
    with pytest.raises(CompositionError, match=r"kind 'parts'"):
        WordLayout.of({"x": Parts(np.ones(2)).total()}, FixedPoint(), 3)
    with pytest.raises(CompositionError, match=r"complex128 numbers"):
        WordLayout.of({"x": Sum(np.ones(2, complex)).total()}, FixedPoint(), 3)
    layout = WordLayout.of(totals_of(np.ones(2), 1.0), FixedPoint(), 3)
    with pytest.raises(MessageError, match=r"expected .*'64': 3"):
        layout.decode({"64": np.zeros(4, np.uint64)}, 2)
    with pytest.raises(MessageError, match=r"cannot be read"):
        WordLayout([["x", "odd", "update", "<f8()"]], FixedPoint(), 3)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_a_number_at_the_limit_of_a_word_of_64_bits_is_refused(n):
    """The limit 2^k - 1 rounds up to 2^k in double precision, and n numbers of 2^k are 2^63, which words read as -2^63."""
    at = 2.0 ** (39 - (n - 1).bit_length())
    for sign in (1, -1):
        rows = [totals_of(np.array([sign * at]), 1.0, "sum", "metric")] * n
        with pytest.raises(DataError, match=rf"above .* a sum of {n}"):
            summed(rows, FixedPoint())
        below = [totals_of(np.nextafter(np.array([sign * at]), 0), 1.0, "sum", "metric")] * n
        assert summed(below, FixedPoint())[1].totals["x"].value.tolist() == [sign * n * np.nextafter(at, 0)]


@given(
    st.integers(54, 62), st.sampled_from([2, 3, 4]), st.sampled_from([1.0, -1.0]), st.sampled_from([1.0, 5.0, 1.7e308])
)
def test_a_clamped_number_of_many_bits_keeps_its_sign(value_bits, n, sign, size):
    """Clamped to the largest double that fits, not to the limit rounded up."""
    rows = [totals_of(np.array([sign * size]), 1.0, "sum")] * n
    codec = FixedPoint(value_bits=value_bits, weight_bits=0, value_range=1.0)
    if value_bits + (n - 1).bit_length() > 64:
        return
    _, decoded = summed(rows, codec)
    assert decoded.totals["x"].value[0] == pytest.approx(sign * n)
    assert decoded.clamped == n


def test_a_range_near_zero_has_a_unit_that_has_an_inverse():
    rows = [totals_of(np.array([1e-310, -2e-320]), 1.0, "sum")] * 2
    layout, decoded = summed(rows, FixedPoint(value_range=1e-310))
    assert np.abs(decoded.totals["x"].value - [2e-310, -4e-320]).max() <= 2 * 2.0 ** layout.slots[0].unit
    assert layout.slots[0].unit == -1000
