"""Laws of every compressor: binary forms, sizes, means, errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core import message as M
from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.errors import ConfigError, DataError
from atoll.core.facets import facet
from atoll.core.requests.stage import Estimated, StageContext
from atoll.stages import (
    DGC,
    QSGD,
    STC,
    CountSketch,
    ErrorFeedback,
    LowRank,
    MinMaxAffine,
    Nearest,
    OneBit,
    OptimalSparse,
    RandomK,
    Shift,
    Sign,
    Ternary,
    Threshold,
    TopK,
)
from atoll.stages.packed import index_width, pack, pack_trits, packed_bytes, unpack, unpack_trits
from atoll.testing import check_stage

PLAIN = [
    QSGD(), QSGD(1), QSGD(4, per=3), QSGD(5000, per="model"), MinMaxAffine(), MinMaxAffine(4, stochastic=True),
    MinMaxAffine(3, per=4), Nearest(), Nearest(2, per=4), OneBit(), OneBit("model"), Sign(), Sign(per=5), Sign(scaled=False), Ternary(), Ternary("model"),
    TopK(0.3), TopK(0.2, "tensor"), STC(0.3), STC(0.3, "tensor"), Threshold(0.5), RandomK(0.25), RandomK(0.25, scaled=False),
    RandomK(0.25, shared=True), OptimalSparse(1.0), OptimalSparse(0.1), CountSketch(8, 3), CountSketch(8, 3, "median"),
    LowRank(1), LowRank(2),
]  # fmt: skip
WITH_MEMORY = [
    ErrorFeedback(TopK(0.2)), ErrorFeedback(Sign()), ErrorFeedback(Threshold(0.5)), ErrorFeedback(CountSketch(8, 3, "median")),
    ErrorFeedback(RandomK(0.25, False, True)), Shift(RandomK(0.25)), Shift(QSGD(4), a=0.3), DGC(0.2), DGC(0.05, clip=1.0, warmup=2),
]  # fmt: skip


@pytest.mark.every(4)
@pytest.mark.parametrize("stage", PLAIN + WITH_MEMORY, ids=repr)
def test_every_compressor_keeps_what_it_declares(stage):
    check_stage(stage, tolerance=2e-5)


def tree(rng, dtype=np.float32):
    return {"w": rng.normal(size=(7, 9)).astype(dtype), "b": [rng.normal(size=5).astype(dtype), dtype(0.5)]}


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["32", "64"])
@pytest.mark.parametrize("stage", PLAIN + WITH_MEMORY, ids=repr)
def test_bits_are_the_bytes_of_what_is_sent_and_the_message_carries_little_more(stage, dtype):
    value, rng = tree(np.random.default_rng(0), dtype), Rng.of(1)
    sent = stage.encode(value, StageContext.of(rng, stage.public(rng)))
    size = 8 * sum(np.asarray(leaf).nbytes for leaf in T.leaves(sent))
    assert stage.wire_bits(value) in (None, size)
    # Every buffer is padded to 64 bytes, and the template of three tensors is a header.
    assert size / 8 <= M.nbytes(sent) <= size / 8 + 64 * len(T.leaves(sent)) + 400
    back = stage.decode(M.decode(M.encode(sent)), stage.public(rng), 1)
    for leaf, got in zip(T.leaves(value), T.leaves(back), strict=True):
        assert got.dtype == leaf.dtype
        assert got.shape == leaf.shape


@pytest.mark.parametrize("stage", PLAIN + WITH_MEMORY, ids=repr)
def test_nothing_stays_nothing(stage):
    value, rng = {"w": np.zeros((3, 4)), "b": np.zeros(2)}, Rng.of(0)
    back = stage.decode(stage.encode(value, StageContext.of(rng, stage.public(rng))), stage.public(rng), 1)
    if stage == Sign(scaled=False):
        assert all((leaf == 1).all() for leaf in T.leaves(back))
    else:
        assert not any(leaf.any() for leaf in T.leaves(back))


@given(width=st.integers(1, 40), count=st.integers(0, 40), lead=st.integers(1, 3), seed=st.integers(0, 99))
@settings(max_examples=60)
def test_packing_is_undone_and_takes_the_bits_it_says(width, count, lead, seed):
    codes = np.random.default_rng(seed).integers(0, 1 << width, size=(lead, count), dtype=np.uint64)
    packed = pack(codes, width)
    assert packed.dtype == np.uint8
    assert packed.shape == (lead, packed_bytes(count, width))
    np.testing.assert_array_equal(unpack(packed, width, count), codes)
    trits = codes % 3
    assert pack_trits(trits).shape == (lead, -(-count // 5))
    np.testing.assert_array_equal(unpack_trits(pack_trits(trits), count), trits)


def test_widths_of_indices():
    assert [index_width(n) for n in (0, 1, 2, 3, 256, 257)] == [0, 0, 1, 2, 8, 9]


def mean_error(stage, x, draws):
    value, total, nonzero = {"w": x}, 0.0, 0.0
    for i in range(draws):
        rng = Rng.of(i)
        got = stage.decode(stage.encode(value, StageContext.of(rng, stage.public(rng))), stage.public(rng), 1)["w"]
        total += float(((got - x) ** 2).sum() / (x**2).sum()) / draws
        nonzero += np.count_nonzero(got) / draws
    return total, nonzero


def test_the_error_of_random_quantisation_is_the_one_that_was_measured():
    """d = 50: variance/||v||^2 = 4.78, 0.504, 0.0294 for s = 1, 4, 16; bounds 7.07, 1.77, 0.195; 5.78 <= 8.07 non-zeros at s = 1.

    These numbers are of one vector that is not known. So: the error is ``sum p (1 - p) / s^2`` with ``p`` the fraction of a level, and over Gaussian
    vectors that has the golden numbers within its range.
    """

    def exact(x, s):
        level = np.abs(x) / np.linalg.norm(x) * s
        chance = level - np.floor(level)
        return float((chance * (1 - chance)).sum() / s**2), float(np.minimum(level, 1).sum())

    vectors = [np.random.default_rng(seed).normal(size=50) for seed in range(100)]
    for s, golden, bound in ((1, 4.78, 7.07), (4, 0.504, 1.77), (16, 0.0294, 0.195)):
        known = [exact(x, s) for x in vectors]
        assert min(known)[0] < golden < max(known)[0]
        assert facet(QSGD(s), Estimated).omega({"w": np.zeros(50)}) == pytest.approx(bound, rel=5e-3)
        assert max(known)[0] <= bound
        error, nonzero = mean_error(QSGD(s), vectors[0], 400)
        assert error == pytest.approx(known[0][0], rel=0.08)
        assert nonzero <= s * (s + np.sqrt(50))
        if s == 1:
            assert nonzero == pytest.approx(known[0][1], rel=0.05)
            assert min(k[1] for k in known) < 5.78 < max(k[1] for k in known)


@pytest.mark.parametrize(("levels", "golden", "bound"), [(256, 0.0199, 0.120), (16, 3.43, 5.53)])
def test_the_error_on_the_papers_logistic_regression(levels, golden, bound):
    """n = 7840: 0.0199 at s = 256 and 3.43 at s = 16 for a Gaussian vector; bounds 0.120 and 5.53."""
    x = np.random.default_rng(0).normal(size=7840)
    assert mean_error(QSGD(levels, per="model"), x, 20)[0] == pytest.approx(golden, rel=0.03)
    assert facet(QSGD(levels, per="model"), Estimated).omega({"w": x}) == pytest.approx(bound, rel=5e-3)


# Specification of FedAQ, A3: min(n/s^2, sqrt(n)/s) of the whole model with s = 2^bits.
@pytest.mark.parametrize(
    ("entries", "eight", "four"), [(7_840, 0.120, 5.53), (199_210, 1.74, 27.9), (672_212, 3.20, 51.2)]
)
def test_the_declared_error_on_the_papers_models(entries, eight, four):
    value = {"w": np.zeros(entries, np.float32)}
    assert facet(QSGD(256, per="model"), Estimated).omega(value) == pytest.approx(eight, rel=5e-3)
    assert facet(QSGD(16, per="model"), Estimated).omega(value) == pytest.approx(four, rel=5e-3)


@pytest.mark.parametrize(("levels", "width"), [(1, 2), (7, 4), (127, 8), (255, 9), (256, 10), (32767, 16)], ids=str)
def test_levels_and_bits(levels, width):
    """32 bits for the norm and 1 + ceil(log2(s + 1)) an entry, on the wire."""
    value = {"w": np.random.default_rng(0).normal(size=1000).astype(np.float32)}
    sent = QSGD(levels).encode(value, StageContext.of(Rng.of(0)))
    assert QSGD(levels).width == width == 1 + int(np.ceil(np.log2(levels + 1)))
    assert 8 * (sent["codes"].nbytes + sent["norms"].nbytes) == 32 + 1000 * width


def test_the_sum_of_ternary_replies_has_2n_plus_1_levels():
    """QSGD's (2 + log2(2N + 1)) bits: two up an entry at s = 1, and sums of N replies of one norm take each of 2N + 1 values and no other."""
    n, value = 3, {"w": np.array([1.0, -1.0, 1.0, -1.0])}  # of norm 2: an entry is sent as 2 or -2 with chance 1/2
    seen = set()
    for start in range(0, 300, n):
        replies = [
            QSGD(1).decode(QSGD(1).encode(value, StageContext.of(Rng.of(start + i))), None, 1)["w"] for i in range(n)
        ]
        seen |= set((np.sum(replies, axis=0) / 2.0).tolist())
    assert QSGD(1).width == 2
    assert seen == set(range(-n, n + 1))


def test_signs_take_two_bits_an_entry_and_client_where_floats_take_sixty_four():
    """2Nd bits of signSGD with a vote, 64Nd of float32 both ways: 32 times as many."""
    d, clients = 4096, 10
    value = {"w": np.ones(d, np.float32)}
    sent = Sign(scaled=False).encode(value, StageContext.of(Rng.of(0)))
    up = down = 8 * sum(leaf.nbytes for leaf in T.leaves(sent))
    assert clients * (up + down) == 2 * clients * d
    assert 64 * clients * d / (clients * (up + down)) == 32


def test_the_sparsest_unbiased_vector():
    """The constraint is tight, and no vector of the same second moment has fewer entries on average."""
    from atoll.stages.wangni import probabilities

    rng = np.random.default_rng(0)
    rows = rng.standard_t(2, size=(4, 1000)) ** 3
    sizes = []
    for eps in (0.1, 1.0, 4.0):
        p, _ = probabilities(rows, eps)
        moment = np.divide(rows**2, p, out=np.zeros_like(rows), where=p > 0).sum(axis=1)
        np.testing.assert_allclose(moment, (1 + eps) * (rows**2).sum(axis=1), rtol=1e-12)
        sizes.append(p.sum(axis=1))
        free = (p > 0) & (p < 1)  # stationarity: g^2/p^2 is one constant on the entries that are drawn
        for row, chance, drawn in zip(rows, p, free, strict=True):
            ratio = np.abs(row[drawn]) / chance[drawn]
            np.testing.assert_allclose(ratio, ratio[0], rtol=1e-9)
            assert (np.abs(row[chance == 1]) >= ratio[0] * (1 - 1e-9)).all()
    assert (np.diff(sizes, axis=0) < 0).all()


def test_large_and_tiny_entries_are_compressed_not_lost():
    for x in (np.array([3e30, -4e30, 0, 1e28], np.float32), np.array([3e-30, -4e-30, 0, 1e-32], np.float32)):
        for stage in (QSGD(127), TopK(0.5), Ternary(), OptimalSparse(0.01), Sign()):
            got = stage.decode(stage.encode({"w": x}, StageContext.of(Rng.of(0))), None, 1)["w"]
            assert np.isfinite(got).all()
            assert np.sign(got[1]) == -1
            if not isinstance(stage, Sign | TopK):
                continue
            assert abs(got[1]) > 0


def test_whole_numbers_are_refused():
    with pytest.raises(DataError, match="dtype int64 cannot be compressed"):
        QSGD().encode({"w": np.arange(3)}, StageContext.of(Rng.of(0)))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: QSGD(0), "levels=0"), (lambda: QSGD(per="layer"), "per='layer'"), (lambda: QSGD(per=0), "per=0"),
        (lambda: MinMaxAffine(1), "bits_each=1"), (lambda: TopK(0.0), "fraction=0.0"), (lambda: TopK(1.5), "fraction=1.5"),
        (lambda: Threshold(-1.0), "bound=-1.0"), (lambda: OptimalSparse(0.0), "eps=0.0"), (lambda: CountSketch(0), "columns=0"),
        (lambda: CountSketch(estimate="mode"), "estimate='mode'"), (lambda: Shift(QSGD(), a=1.5), "a=1.5"),
        (lambda: DGC(momentum=1.0), "momentum=1.0"), (lambda: DGC(clip=0.0), "clip=0.0"), (lambda: DGC(warmup=-1), "warmup=-1"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)  # fmt: skip
def test_settings_without_sense_are_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()
