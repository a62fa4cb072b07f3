"""Random pruning by layer, with a seed that all clients share: what is kept, its error, and words behind it."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.core.algebra.rng import Rng
from atoll.core.errors import ConfigError
from atoll.core.facets import facet
from atoll.core.requests.stage import Estimated, StageContext
from atoll.stages import RandomK, ScalarQuantizer
from atoll.testing import check_stage


@pytest.mark.parametrize("scaled", [True, False])
def test_it_keeps_what_it_declares(scaled):
    check_stage(RandomK(0.25, scaled, True, per="tensor"))


def value(size=(32, 16)):
    rng = np.random.default_rng(0)
    return {"w": rng.normal(size=size).astype(np.float32), "v": rng.normal(size=(8, 8)), "b": rng.normal(size=16)}


def test_all_clients_keep_the_same_entries_of_each_layer_and_biases_whole():
    stage = RandomK(1 / 8, False, True, per="tensor")
    public = stage.public(Rng(0))
    first, second = (stage.encode(value(), StageContext.of(Rng(i), public)) for i in (1, 2))
    assert [leaf.shape for leaf in first["values"]] == [(64, 1), (8, 1), (16,)]
    assert all(np.array_equal(a, b) for a, b in zip(first["values"], second["values"], strict=True))
    back = stage.decode(first, public, 1)
    kept = back["w"] != 0
    assert kept.sum() == 64
    assert np.array_equal(back["w"][kept], value()["w"][kept])
    assert np.array_equal(back["b"], value()["b"])
    other = stage.encode(value(), StageContext.of(Rng(1), stage.public(Rng(1))))
    assert not np.array_equal(first["values"][0], other["values"][0])
    # 4 bytes for each of 64 entries, 8 for the others: no index is sent.
    assert stage.wire_bits(value()) == 8 * (64 * 4 + 8 * 8 + 16 * 8)


def test_the_entries_of_a_seed_do_not_change_with_the_platform():
    # Golden: PCG64 and Generator.choice of NumPy 2, drawn once here; parties on other machines must draw the same.
    stage = RandomK(1 / 16, False, True, per="tensor")
    ones = {"w": np.arange(64.0).reshape(8, 8)}
    sent = stage.encode(ones, StageContext.of(Rng(0), 12345))
    assert sent["values"][0][:, 0].tolist() == GOLDEN


GOLDEN = [3.0, 8.0, 14.0, 45.0]


@pytest.mark.parametrize(("scaled", "expected"), [(False, 0.875), (True, 7.0)])
def test_the_relative_error_at_one_in_eight(scaled, expected):
    # Digest of Prasad et al. 2022, section A3: 1 - K/D without the factor, D/K - 1 with it.
    stage = RandomK(1 / 8, scaled, True, per="tensor")
    one = {"w": value((64, 64))["w"]}
    errors = []
    for i in range(200):
        public = stage.public(Rng(i))
        back = stage.decode(stage.encode(one, StageContext.of(Rng(0), public)), public, 1)["w"]
        errors.append(((back - one["w"]) ** 2).sum() / (one["w"] ** 2).sum())
    assert np.mean(errors) == pytest.approx(expected, rel=0.02)
    assert (facet(stage, Estimated).omega(one) if scaled else 1 - facet(stage, Estimated).delta(one)) == expected


@pytest.mark.parametrize("engine", ["inline", "batched"])
def test_pruning_and_words_together(engine):
    islands = atoll.data.dirichlet(atoll.data.digits(), parties=8, alpha=1.0, seed=0)
    uplink = [RandomK(0.25, False, True, per="tensor"), ScalarQuantizer(8, 12)]
    job = atoll.Training(model=atoll.models.linear(64, 10), algorithm=atoll.FedAvg(lr=0.5), rounds=12, uplink=uplink)
    result = atoll.simulate(job, islands, engine=engine)
    last = result.metrics[-1]
    assert last["bits_declared"] == last["replied"] * (160 * 12 + 8 * 6 + 10 * 64 + 32)  # two check words of 22 bits
    assert last["clamped"] < 0.05
    assert last["overflowed"] == 0.0
    assert result.metrics.last("test/accuracy") > 0.6


def test_layers_without_a_shared_seed_are_refused():
    with pytest.raises(ConfigError, match="'tensor' with shared=True"):
        RandomK(0.5, per="tensor")


def test_a_seed_of_ones_own_keeps_the_same_entries_in_every_round():
    stage = RandomK(1 / 8, True, True, per="tensor", seed=7)
    assert stage.public(Rng(0)) == stage.public(Rng(1)) == 7
    assert not stage.unbiased
    assert facet(stage, Estimated).omega(value()) is None
    with pytest.raises(ConfigError, match="seed=7"):
        RandomK(0.5, seed=7)
