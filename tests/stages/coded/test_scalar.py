"""Scalar quantisation underneath sums: words that add up modulo 2^p, the zero point, lifts, what is clamped and what overflows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Mean
from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError, ConfigError, MessageError
from atoll.core.facets import facet
from atoll.core.requests.chain import Chain
from atoll.core.requests.stage import Fitting, Identity, StageContext, Worded
from atoll.stages import QSGD, ScalarQuantizer
from atoll.stages.coded.words import lifted
from atoll.testing import check_stage


@pytest.mark.parametrize(
    "settings",
    [
        {}, {"scheme": "symmetric"}, {"stochastic": True}, {"bits": 16}, {"bits": 1, "modulus_bits": 9}, {"lift": "unsigned"}, {"limit": 8.0},
        {"layers": "all", "stochastic": True, "limit": 12.0}, {"bits": 5, "modulus_bits": 13, "scheme": "symmetric", "stochastic": True},
    ],
    ids=str,
)  # fmt: skip
def test_it_keeps_what_it_declares(settings):
    check_stage(ScalarQuantizer(**settings))


def quantised(stage, rows, public):
    """The sum of the encodings of some vectors, not reduced."""
    sent = [stage.encode({"x": row}, StageContext.of(Rng(i), public)) for i, row in enumerate(rows)]
    total = sent[0]
    for one in sent[1:]:
        total = T.add(total, one)
    return total


def test_the_golden_shares_of_wrong_entries():
    # Digest of Prasad et al. 2022, section A2: computed there with NumPy alone, from default_rng(0), 37 clients, 4096 entries, range of all.
    x = np.random.default_rng(0).normal(size=(37, 4096))
    wrong = {}
    for lift, modulus_bits in [("centred", 9), ("centred", 10), ("centred", 11), ("unsigned", 12), ("unsigned", 13)]:
        stage = ScalarQuantizer(8, modulus_bits, layers="all", lift=lift)
        public = {**stage.over(x.min(), x.max()), "version": 1}
        total = quantised(stage, x, public)
        short = (
            T.map(
                lambda leaf, b, t=total: leaf if b is None else leaf & np.uint32(2**b - 1),
                total,
                facet(stage, Worded).word_bits(total),
            )
            if modulus_bits < 32
            else total
        )
        off = np.abs(stage.decode(short, public, 37)["x"] - x.sum(axis=0))
        bound = 37 * float(public["scale"]) / 2
        wrong[lift, modulus_bits] = round(100 * float((off > bound).mean()), 2)
        assert facet(stage, Worded).counts(total, public, 37, exact=True)["overflowed"] == int((off > bound).sum())
    assert wrong == {
        ("centred", 9): 12.96,
        ("centred", 10): 0.24,
        ("centred", 11): 0,
        ("unsigned", 12): 99.85,
        ("unsigned", 13): 0,
    }


def test_the_printed_decoder_of_the_source_is_wrong():
    # s Q - z/N, as printed, and s (Q - z/N), its other reading, miss by far what s (Q - N z) meets. Without overflow, in exact arithmetic.
    x = np.random.default_rng(0).normal(size=(37, 4096)) * 0.01
    stage = ScalarQuantizer(8, 16, layers="all")
    public = {**stage.over(x.min(), x.max()), "version": 1}
    total, s, z = quantised(stage, x, public), float(public["scale"]), int(public["zero"])
    codes, true = next(iter(total.values()))["codes"]["x"].astype(float), x.sum(axis=0)
    assert np.abs(stage.decode(total, public, 37)["x"] - true).max() <= 37 * s / 2
    assert np.abs(s * codes - z / 37 - true).max() > 1
    assert np.abs(s * (codes - z / 37) - true).max() > 1


@given(
    st.integers(1, 12), st.integers(1, 6), st.integers(1, 40), st.integers(0, 10_000), st.sampled_from(["affine", "symmetric"]),
    st.booleans(), st.sampled_from(["centred", "unsigned"]),
)  # fmt: skip
@settings(deadline=None)
def test_the_sum_of_words_is_the_sum_of_what_they_mean(bits, extra, n, seed, scheme, stochastic, lift):
    if scheme == "symmetric":
        bits = max(2, bits)
    rng = np.random.default_rng(seed)
    stage = ScalarQuantizer(bits, bits + extra, scheme, stochastic, lift, layers="all", least=1)
    rows = rng.normal(size=(n, 17))
    public = {**stage.over(float(rows.min()), float(rows.max())), "version": 3}
    total = quantised(stage, rows, public)
    short = T.map(
        lambda leaf, b: leaf if b is None else leaf & np.uint32((1 << b) - 1),
        total,
        facet(stage, Worded).word_bits(total),
    )
    together = stage.decode(short, public, n)["x"]
    # Integers: what each code means, added up exactly, and lifted into the range of the words.
    sent = [stage.encode({"x": row}, StageContext.of(Rng(i), public))["v3"] for i, row in enumerate(rows)]
    whole = sum(one["codes"]["x"].astype(object) - int(public["zero"]) for one in sent)
    half, size = 1 << (stage.word - 1), 1 << stage.word
    if lift == "centred":
        expected = [(int(c) + half) % size - half for c in whole]
    else:
        expected = [(int(c) + n * int(public["zero"])) % size - n * int(public["zero"]) for c in whole]
    assert np.array_equal(together, float(public["scale"]) * np.array(expected, dtype=float))
    clamped = sum(int(one["clamped"][0]) for one in sent)
    counts = facet(stage, Worded).counts(total, public, n, exact=True)
    assert counts["clamped"] == clamped
    assert counts["overflowed"] == sum(int(c) != e for c, e in zip(whole, expected, strict=True))
    if clamped == counts["overflowed"] == 0:
        step = float(public["scale"]) * (1 if stochastic else 0.5)
        assert np.abs(together - rows.sum(axis=0)).max() <= n * step * (1 + 1e-6) + 1e-9


@given(st.integers(1, 16), st.integers(1, 300))
def test_no_overflow_is_the_tight_bound(bits, n):
    enough = (n * (2**bits - 1)).bit_length()  # the least p with n (2^b - 1) < 2^p
    assert enough <= bits + int(np.ceil(np.log2(n))) if n > 1 else enough == bits
    for modulus_bits in {enough - 1, enough}:
        if bits < modulus_bits <= 32:
            stage = ScalarQuantizer(bits, modulus_bits, lift="unsigned", layers="all", least=1)
            public = {"scale": np.float32(1), "zero": np.int64(0), "version": 1}
            top = np.full(1, float(2**bits - 1))
            total = {
                "v1": {
                    "like": {"x": np.zeros((0, 1))},
                    "codes": {"x": np.array([n * (2**bits - 1)], np.uint32)},
                    "clamped": np.zeros(1, np.uint32),
                }
            }
            fits = modulus_bits >= enough
            assert stage.holds(n) == fits
            assert (stage.decode(total, public, n)["x"] == n * top).all() == fits


def test_what_does_not_fit_is_clamped_counted_and_not_spread():
    stage = ScalarQuantizer(8, 16, limit=1.0, layers="all", least=1)
    public = stage.public(Rng(0))
    sent = stage.encode({"x": np.array([0.5, 3.0, -7.0])}, StageContext.of(Rng(0), public))
    assert sent["v1"]["clamped"][0] == 2
    assert np.allclose(stage.decode(sent, public, 1)["x"], [0.5, 1.0, -1.0], atol=0.01)
    assert facet(stage, Worded).counts(sent, public, 1, exact=False) == {
        "words": 3,
        "coded": 3,
        "clamped": 2,
        "overflowed": 0,
    }


def test_biases_norms_and_small_layers_stay_numbers():
    stage = ScalarQuantizer(8, 12, limit=1.0)
    value = {"w": np.ones((5, 6), np.float32), "b": np.ones(6, np.float32), "tiny": np.ones((3, 3), np.float32)}
    sent = stage.encode(value, StageContext.of(Rng(0), stage.public(Rng(0))))
    bits = facet(stage, Worded).word_bits(sent)["v1"]["codes"]
    assert bits == {"w": 12, "b": None, "tiny": None}
    assert sent["v1"]["codes"]["b"].dtype == np.float32
    assert stage.wire_bits(value) == 8 * (5 * 6 * 12 // 8) + 8 * 3 + 32 * (6 + 9) + 32  # one check word of 22 bits
    assert ScalarQuantizer(8, 12, limit=1.0, checked=0).wire_bits(value) == stage.wire_bits(value) - 8 * 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bits": 0}, "bits=0"), ({"bits": 17}, "1 to 16 bits"), ({"bits": 8, "modulus_bits": 8}, "modulus_bits=8 for codes of 8 bits"),
        ({"modulus_bits": 33}, "9 to 32 bits"), ({"bits": 1, "scheme": "symmetric"}, "affine"), ({"spread": 0.0}, "spread=0.0"),
        ({"limit": -1.0}, "limit=-1.0"), ({"refresh": 0}, "refresh=0"), ({"checked": 513}, "checked=513"),
    ],
    ids=str,
)  # fmt: skip
def test_settings_without_a_meaning_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        ScalarQuantizer(**settings)


def test_an_update_under_one_version_is_not_decoded_under_another():
    stage = ScalarQuantizer()
    value = {"w": np.ones((4, 4))}
    old, new = ({**facet(stage, Fitting).fit(value, Rng(0)), "version": v} for v in (3, 4))
    sent = stage.encode(value, StageContext.of(Rng(0), old))
    with pytest.raises(MessageError, match="under v3, but the round parameters are v4"):
        stage.decode(sent, new, 1)


def test_nothing_stands_behind_words_and_numbers_that_are_not_finite_are_no_words():
    with pytest.raises(CompositionError, match="which sends words"):
        Chain([ScalarQuantizer(), ScalarQuantizer()])
    with pytest.raises(CompositionError, match="stands behind ScalarQuantizer"):
        Chain([ScalarQuantizer(), QSGD()])
    chain = Chain([Identity(), ScalarQuantizer(limit=1.0)])
    sent = chain.send(Mean({"w": np.full((4, 4), np.inf)}, examples=2.0), chain.public(Rng(0)), Rng(1), {})
    assert not np.isfinite(sent.total.value["w"]).all()


def test_the_weight_is_in_the_value_and_in_the_error():
    stage = ScalarQuantizer(12, 20, limit=40.0, layers="all", least=1)
    chain, rng = Chain([stage]), np.random.default_rng(0)
    public, rows, weights = chain.public(Rng(0)), rng.normal(size=(5, 8)), [1.0, 7.0, 3.0, 10.0, 2.5]
    totals = [
        chain.send(Mean({"x": x}, examples=w), public, Rng(i), {}).total
        for i, (x, w) in enumerate(zip(rows, weights, strict=True))
    ]
    merged = totals[0]
    for one in totals[1:]:
        merged = merged.merge(one)
    found = chain.decode(merged, public).result()["x"]
    step = float(public[0]["scale"])
    assert np.abs(found - np.average(rows, axis=0, weights=weights)).max() <= 5 * step / 2 / sum(weights) + 1e-9


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=5), st.integers(2, 32))
def test_the_lift_is_the_residue_nearest_to_zero(words, bits):
    found = lifted(np.array(words, dtype=np.uint64).astype(np.int64), bits)
    assert [int(x) % 2**bits for x in found] == [w % 2**bits for w in words]
    assert (found >= -(2 ** (bits - 1))).all()
    assert (found < 2 ** (bits - 1)).all()


def test_a_training_under_words_of_24_bits_is_the_plain_one_to_rounding():
    islands = atoll.data.dirichlet(atoll.data.digits(), parties=6, alpha=0.5, seed=0)

    def trained(*uplink):
        job = atoll.Training(model=atoll.models.linear(64, 10), algorithm=atoll.FedAvg(lr=0.3), rounds=4, uplink=uplink)
        return atoll.simulate(job, islands, engine="inline")

    plain, words = trained(), trained(atoll.ScalarQuantizer(16, 24))
    assert np.abs(words.params["weight"] - plain.params["weight"]).max() < 2e-4
    assert [row.get("overflowed") for row in words.metrics] == [None, 0.0, 0.0, 0.0]
