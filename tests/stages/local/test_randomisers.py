"""Local randomisers: each reply is as private as its events say, whoever sees it, and means what it should."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

import atoll
from atoll.aggregation import EqualWeights
from atoll.core.errors import ConfigError
from atoll.core.event import Ledger
from atoll.core.facets import facet
from atoll.core.requests.island import Secret
from atoll.core.requests.stage import Guarding, StageContext, WithMemory
from atoll.privacy import spent
from atoll.privacy.discrete import clip_rows
from atoll.stages import FedSel, LocalGaussian, LocalLaplace, RandomisedSigns
from atoll.stages.local import choose_places, response

STAGES = [
    LocalLaplace(bound=1.0, epsilon=1.5),
    LocalGaussian(bound=1.0, multiplier=2.0),
    RandomisedSigns(limit=0.2, epsilon=1.5, entries=3),
    FedSel(limit=0.2, epsilon=1.5, entries=2),
]
vectors = arrays(np.float64, (2, 5), elements=st.floats(-1e300, 1e300) | st.sampled_from([math.inf, math.nan, 0.0]))


def draws(count):
    return [Secret(seed).generator() for seed in range(count)]


@given(vectors, st.floats(1e-3, 1e3), st.sampled_from([1, 2]))
def test_no_two_values_are_further_apart_than_twice_the_bound(rows, bound, norm):
    step = 2.0**-30
    steps = clip_rows(rows, bound, norm, step)
    assert np.array_equal(steps, np.trunc(steps))
    for row in steps:  # in exact arithmetic: so two of them are at most twice the bound apart
        length = sum(abs(Fraction(x)) ** norm for x in row.tolist())
        assert length <= (Fraction(bound) / Fraction(step)) ** norm


def test_values_within_the_bound_stay_as_they_are():
    rows, step = np.array([[0.3, -0.4, 0.0]]), 2.0**-40
    assert np.allclose(step * clip_rows(rows, 0.7, 1, step), rows)
    assert np.allclose(step * clip_rows(rows, 0.5, 2, step), rows)
    assert np.allclose(step * clip_rows(rows, 0.25, 2, step), rows / 2)


def test_the_bound_of_laplace_noise_is_one_of_the_l1_norm():
    """A hundred equal entries of L1 norm 100 are scaled down to norm 1; by their L2 norm, which is 10, they would keep a norm of 10."""
    (told,) = LocalLaplace(bound=1.0, epsilon=1e9).randomise(np.ones((1, 100)), draws(1))
    assert np.abs(told).sum() == pytest.approx(1.0, rel=1e-5)
    (told,) = LocalGaussian(bound=1.0, multiplier=1e-9).randomise(np.ones((1, 100)), draws(1))
    assert np.linalg.norm(told) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize(
    ("stage", "law"),
    [
        (LocalLaplace(bound=2.0, epsilon=0.5), stats.laplace(scale=2 * 2.0 / 0.5)),
        (LocalGaussian(bound=2.0, multiplier=1.5), stats.norm(scale=2 * 2.0 * 1.5)),
    ],
)
def test_noise_follows_the_law_that_its_event_says(stage, law):
    noise = stage.randomise(np.zeros((1, 40_000)), draws(1))[0]
    assert stats.kstest(noise, law.cdf).pvalue > 1e-3
    (event,) = facet(stage, Guarding).events(None)
    scale = 2 * stage.bound / event.epsilon if hasattr(event, "epsilon") else 2 * stage.bound * event.noise_multiplier
    assert scale == pytest.approx(law.kwds["scale"])


def test_a_response_is_unbiased_and_its_odds_are_those_of_epsilon():
    epsilon, limit, n = 1.2, 0.5, 200_000
    draw = Secret(0).generator()
    for value in (-0.7, -0.5, 0.1, 0.5):
        told = response(np.full(n, value), limit, epsilon, draw)
        assert set(np.abs(told).round(12)) == {round(limit / math.tanh(epsilon / 2), 12)}
        assert told.mean() == pytest.approx(np.clip(value, -limit, limit), abs=5 * told.std() / math.sqrt(n))
    ups = [(response(np.full(n, v), limit, epsilon, draw) > 0).mean() for v in (limit, -limit)]
    assert math.log(ups[0] / ups[1]) == pytest.approx(epsilon, abs=0.03)  # the extremes are the worst pair


def test_signs_are_unbiased_over_the_places():
    stage, value = RandomisedSigns(limit=1.0, epsilon=3.0, entries=2), np.array([0.5, -0.25, 0.0, 1.0])
    told = stage.randomise(np.tile(value, (20_000, 1)), draws(1) * 20_000)
    assert ((told != 0).sum(axis=1) == 2).all()
    assert np.allclose(told.mean(axis=0), value, atol=5 * told.std() / math.sqrt(len(told)))


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_choice_of_a_large_entry_has_odds_of_epsilon_exactly(epsilon):
    draw, n, d = Secret(1).generator(), 60_000, 10
    sizes = np.arange(d, dtype=float)  # 8 and 9 are the largest fifth
    found = np.bincount([choose_places(sizes, 0.2, 1, epsilon, draw)[0] for _ in range(n)], minlength=d) / n
    grown = math.exp(epsilon)
    law = np.where(np.arange(d) >= 8, grown, 1.0) / (8 + 2 * grown)
    assert stats.chisquare(found * n, law * n).pvalue > 1e-3


def test_several_choices_are_different_and_all_entries_can_be_chosen():
    draw = Secret(2).generator()
    assert sorted(choose_places(np.ones(6), 0.5, 6, 1.0, draw).tolist()) == list(range(6))
    assert len(set(choose_places(np.arange(50.0), 0.1, 7, 4.0, draw).tolist())) == 7


def test_fedsel_keeps_what_it_did_not_report():
    stage = FedSel(limit=1.0, epsilon=50.0, fraction=0.25, entries=1, decay=0.5)
    context = StageContext(keys=np.zeros(1, np.uint64), seeds=np.zeros((1, 32), np.uint8))
    value = {"w": np.array([0.1, 0.9, 0.2, 0.3])}
    sent, kept = facet(stage, WithMemory).remember(value, facet(stage, WithMemory).fresh(value), context)
    assert np.flatnonzero(sent["w"]).tolist() == [1]  # epsilon is so large that the choice is certain
    assert np.array_equal(kept["residual"]["w"], [0.1, 0.0, 0.2, 0.3])
    _, again = facet(stage, WithMemory).remember({"w": np.array([1.0, 0.0, 0.0, 0.0])}, kept, context)
    assert np.allclose(again["residual"]["w"], [0.0, 0.0, 0.1, 0.15])  # 1 + 0.1 / 2 was reported


@pytest.mark.parametrize("stage", STAGES, ids=lambda s: type(s).__name__)
def test_a_training_spends_before_it_sends_and_noise_is_not_of_the_seed(stage, tmp_path):
    clients = atoll.data.iid(atoll.data.digits(), parties=4, seed=0)
    job = atoll.Training(
        model=atoll.models.linear(64, 10),
        selection=atoll.Everyone(),
        aggregation=EqualWeights(),
        uplink=[stage],
        rounds=2,
    )
    runs = {name: atoll.simulate(job, clients, engine=name, folder=tmp_path / name) for name in ("inline", "batched")}
    ledgers = [Ledger(tmp_path / name / "checkpoints" / "ledger.jsonl") for name in runs]
    costs = [spent(ledger, 1e-5, "pld", "server", "replace-one") for ledger in ledgers]
    assert costs[0] == costs[1]
    assert len(costs[0]) == 4
    pure = sum(2 * getattr(event, "epsilon", math.inf) * event.count for event in facet(stage, Guarding).events(None))
    assert max(costs[0].values()) <= pure
    weights = [run.params["weight"] for run in runs.values()]
    assert not np.array_equal(*weights)  # two runs of one seed


def test_bad_settings_are_refused():
    with pytest.raises(ConfigError, match=r"bound=0\.0"):
        LocalLaplace(bound=0.0)
    with pytest.raises(ConfigError, match="multiplier=inf"):
        LocalGaussian(multiplier=math.inf)
    with pytest.raises(ConfigError, match="entries=0"):
        RandomisedSigns(entries=0)
    with pytest.raises(ConfigError, match=r"share=1\.0"):
        FedSel(share=1.0)
