"""Compression underneath masks: the same models as without them, and what a masked sum adds up."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.algorithms import Scaffold
from atoll.pacing import FedBuff
from atoll.reducers import SecureAggregation
from atoll.stages import Clip, RandomK, ScalarQuantizer


@pytest.fixture(scope="module")
def islands():
    made = atoll.data.dirichlet(atoll.data.digits(), parties=8, alpha=0.5, seed=0)
    return made.with_public(made.shard(7).dataset())


def trained(islands, *uplink, rounds=3, **parts):
    parts = {"algorithm": atoll.FedAvg(lr=0.2), **parts}
    job = atoll.Training(model=atoll.models.linear(64, 10), rounds=rounds, uplink=uplink, **parts)
    return atoll.simulate(job, islands, engine="batched")


@pytest.mark.parametrize("masks", ["real", "virtual"])
@pytest.mark.parametrize(
    "uplink",
    [(ScalarQuantizer(8, 12),), (Clip(1.0), ScalarQuantizer(8, 9)), (RandomK(0.25, False, True, per="tensor"), ScalarQuantizer(8, 12))],
    ids=["words", "words that overflow", "pruned"],
)  # fmt: skip
def test_masked_words_give_the_model_of_plain_ones(islands, uplink, masks):
    """To the bit in the words: also where they wrap around. The bias goes as fixed point, so it is equal to rounding."""
    plain = trained(islands, *uplink, rounds=1)
    hidden = trained(islands, *uplink, rounds=1, reducer=SecureAggregation(masks=masks))
    assert np.array_equal(hidden.params["weight"], plain.params["weight"])
    assert np.abs(hidden.params["bias"] - plain.params["bias"]).max() < 1e-6
    assert hidden.metrics[0]["clamped"] == plain.metrics[0]["clamped"]
    # Masks hide what wraps around; check words tell it.
    exact, told = plain.metrics[0]["overflowed"], hidden.metrics[0]["overflowed"]
    assert abs(told - exact) < 1.5 * exact + 1e-9


def test_clamped_and_overflowed_entries_stand_apart_in_every_row_under_real_masks(islands):
    """Narrow codes are clamped, short words overflow; a setting without check words does not claim to know."""
    stage = ScalarQuantizer(8, 9, limit=0.02, least=1)
    (plain, hidden, fixed), unknown = (
        trained(islands, *uplink, **more).metrics
        for uplink, more in (((stage,), {}), ((stage,), {"reducer": SecureAggregation()}), ((Clip(1.0),), {"reducer": SecureAggregation()}))
    ), trained(islands, ScalarQuantizer(8, 9, limit=0.02, checked=0), reducer=SecureAggregation()).metrics  # fmt: skip
    assert hidden.column("clamped") == plain.column("clamped")
    assert min(plain.column("clamped")) > 0.05
    for told, exact in zip(hidden.column("overflowed"), plain.column("overflowed"), strict=True):
        assert 0 < exact != told
        assert abs(told - exact) < 1.5 * exact
    assert fixed.column("overflowed") == [0.0] * 3  # words of fixed point hold every sum
    assert "overflowed" not in unknown[0]


def test_scaffold_and_fedbuff_go_on_under_words_and_masks(islands):
    for parts in ({"algorithm": Scaffold(lr=0.1)}, {"pacing": FedBuff(buffer=4, group=2)}):
        plain, hidden = (
            trained(islands, ScalarQuantizer(10, 18), **parts, **more)
            for more in ({}, {"reducer": SecureAggregation()})
        )
        assert np.abs(hidden.params["weight"] - plain.params["weight"]).max() < 1e-4


def test_bytes_follow_the_bits_of_a_word(islands):
    sizes = {
        p: trained(islands, ScalarQuantizer(8, p), rounds=1, reducer=SecureAggregation()).metrics[0]["bytes_up"]
        for p in (12, 24)
    }
    assert sizes[24] - sizes[12] == pytest.approx(8 * 640 * 12 / 8, rel=0.02)
