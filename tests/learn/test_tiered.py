"""Tiers (FedAT, Chai et al. 2021): who is in which, each tier's own pace, cross-tier weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.aggregation import KeepGlobal
from atoll.algorithms import FedAvg, FedAvgM, Mime, Scaffold, Upcycled
from atoll.core.errors import CompositionError, ConfigError, QuorumError
from atoll.devices import BatchRate, Fleet
from atoll.learn import Training
from atoll.learn.selection.tifl import cross_tier, tiers_of
from atoll.pacing import Synchronous, Tiered
from atoll.selection import Schedule, TiFL, Uniform
from atoll.stages import QSGD
from tests.support.async_toys import CLIENTS, DATA, DIM, FULL, SECONDS, ForWork, Hidden, job, local, survives, train
from tests.support.learn_toys import Fixed, flat, islands


class Known(Fixed):
    """Devices whose seconds are known beforehand."""

    def forecast(self, parties, plan):
        return self.seconds[parties.positions]


def reference(rounds, tiers, *, seconds=SECONDS, equal=False):
    """Every tier a list of clients that train from the model of the moment; the tier that ends first is folded."""
    w, clock, rows = np.zeros(DIM), 0.0, []
    models, counts = [w] * len(tiers), np.zeros(len(tiers))
    running = {}
    for version in range(rounds):
        for m, members in enumerate(tiers):
            if m not in running:
                running[m] = (clock + max(seconds[k] for k in members), version, m, w)
        clock, base_version, m, base = min(running.values(), key=lambda r: r[:3])
        del running[m]
        models[m] = np.mean([local(k, base) for k in tiers[m]], axis=0)
        counts[m] += 1
        shares = (
            [1 / len(tiers)] * len(tiers)
            if equal
            else [counts[len(tiers) - 1 - i] / counts.sum() for i in range(len(tiers))]
        )
        w = sum(share * model for share, model in zip(shares, models, strict=True))
        rows.append((clock, len(tiers[m]), float(version - base_version)))
    return w, rows


@pytest.mark.parametrize("weights", ["fedat", "equal"])
@pytest.mark.parametrize(
    ("count", "tiers"), [(1, [[0, 1, 2, 3, 4]]), (2, [[0, 1, 2], [3, 4]]), (3, [[0, 1], [2, 3], [4]])]
)
def test_it_is_the_loop(count, tiers, weights):
    found = train(Tiered(tiers=count, weights=weights), seconds=Known(SECONDS))
    w, rows = reference(12, tiers, equal=weights == "equal")
    np.testing.assert_allclose(flat(found.params), w, rtol=1e-11)
    assert [(row["t_end"], row["replied"], row["staleness"]) for row in found.metrics] == rows


@pytest.mark.parametrize(
    "algorithm", [FedAvg(**FULL), FedAvgM(**FULL), Scaffold(**FULL)], ids=lambda a: type(a).__name__
)
def test_one_tier_is_synchronous(algorithm):
    one, other = (train(p, algorithm, seconds=Known(SECONDS), rounds=6) for p in (Tiered(tiers=1), Synchronous()))
    np.testing.assert_allclose(flat(one.params), flat(other.params), rtol=1e-12)
    for name in ("t_end", "bytes_up", "bytes_down", "replied"):
        assert one.metrics.column(name) == other.metrics.column(name)


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=40), st.integers(1, 8))
def test_tiers_are_ranks_cut_into_equal_parts(seconds, tiers):
    tier = tiers_of(seconds, tiers)
    sizes = np.bincount(tier, minlength=tiers)
    assert sizes.max() - sizes.min() <= 1
    took = np.array(seconds)
    for m in range(tiers - 1):
        if (tier == m).any() and (tier == m + 1).any():
            assert took[tier == m].max() <= took[tier == m + 1].min()


@given(st.lists(st.integers(0, 50), min_size=1, max_size=6).filter(any))
def test_cross_tier_weights_are_mirrored_shares_of_updates(counts):
    shares = cross_tier(counts)
    assert shares.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(shares[::-1] * sum(counts), counts)


def test_cross_tier_weights_by_hand():
    """Six, three and one update: the slowest tier weighs 6/10."""
    assert cross_tier([6, 3, 1]).tolist() == [0.1, 0.3, 0.6]


@pytest.mark.filterwarnings("ignore:.*is trained client by client")
def test_running_statistics_are_mixed_like_parameters():
    """Two tiers of which one has updated: with FedAT's weights it does not count yet, with equal ones it does by half."""
    torch = pytest.importorskip("torch")

    def model():
        return torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 3))

    def after(weights, rounds=1):
        pacing = Tiered(tiers=2, weights=weights)
        job = Training(
            model=model, algorithm=FedAvg(lr=0.1, batch_size=3), selection=Uniform(2), pacing=pacing, rounds=rounds
        )
        fleet = Fleet(compute=BatchRate(speed=[9.0, 1.0]))
        return atoll.simulate(job, islands([6, 6]), devices=fleet, engine="inline", seed=3).params

    still, half = after("fedat"), after("equal")
    np.testing.assert_array_equal(still["1.running_mean"], np.zeros(2))
    np.testing.assert_array_equal(still["1.running_var"], np.ones(2))
    assert np.abs(half["1.running_mean"]).min() > 0
    alone = Training(model=model, algorithm=FedAvg(lr=0.1, batch_size=3), selection=Schedule([[0]]), rounds=1)
    whole = atoll.simulate(alone, islands([6, 6]), engine="inline", seed=3).params
    for name in whole:
        np.testing.assert_allclose(half[name], (still[name] + whole[name]) / 2, rtol=1e-5, atol=1e-7)


def test_observed_seconds_sort_the_clients_out():
    found = train(Tiered(tiers=2, by="observed"), seconds=[1.0, 9.0, 1.0, 9.0, 1.0], rounds=30)
    late = [row["t_end"] - row["t_start"] for row in found.metrics]
    fast = [row for row in list(found.metrics)[10:] if row["replied"] == 3]
    assert len(fast) > 15, "three fast clients come to hold rounds by themselves"
    assert np.median(late) <= 1.0


def test_a_deadline_gives_up_whoever_is_late_in_a_tier():
    found = train(Tiered(tiers=2, deadline=2.5), seconds=Known(SECONDS), rounds=8)
    slow = [row for row in found.metrics if row["replied"] == 0]
    assert slow, "the tier of 3 s and 7 s never answers within 2.5 s"
    assert sum(found.metrics.column("late")) == 2 * len(slow)
    np.testing.assert_allclose(found.metrics.column("wasted"), found.metrics.column("late"))


def test_a_loss_that_nobody_notices_wants_a_deadline():
    with pytest.raises(QuorumError, match="a client of tier 2 will never answer"):
        train(Tiered(tiers=2), seconds=Known([1.0, 1.0, 1.0, 2.0, math.inf], notice=math.inf))


def test_a_secure_reducer_sees_one_sum_a_tier():
    class Both(ForWork, Known):
        pass

    devices = Both([1.0, 1.0, 1.0, 2.0, 2.0])
    secure, plain = (train(Tiered(tiers=2), seconds=devices, rounds=6, **more) for more in ({"reducer": Hidden()}, {}))
    np.testing.assert_allclose(flat(secure.params), flat(plain.params), atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", [Scaffold(**FULL), Upcycled(base=FedAvg(**FULL), coefficient=0.3)], ids=lambda a: type(a).__name__
)
def test_a_killed_run_goes_on_where_it_was(tmp_path, algorithm):
    survives(job(Tiered(tiers=2, by="observed"), algorithm, rounds=6, uplink=(QSGD(levels=16),)), tmp_path)


@pytest.mark.parametrize("engine", ["batched", "processes"])
def test_engines_agree(engine):
    one, other = (train(Tiered(tiers=2), seconds=Known(SECONDS), engine=e, rounds=5) for e in ("inline", engine))
    np.testing.assert_allclose(flat(other.params), flat(one.params), rtol=1e-10)
    assert one.metrics.column("bytes_up") == other.metrics.column("bytes_up")


def test_the_cohort_is_divided_among_the_tiers():
    rows = train(Tiered(tiers=2), seconds=Known(SECONDS), selection=Uniform(2), rounds=6).metrics
    assert rows.column("replied") == [1] * 6


def test_a_forecast_must_be_known():
    with pytest.raises(ConfigError, match="there is no forecast of how long the devices will take"):
        train(Tiered())


@pytest.mark.parametrize(
    ("pacing", "more", "text"),
    [
        (Tiered(tiers=CLIENTS + 1), {}, "tiers=6, but only 5 clients work at once"),
        (Tiered(), {"aggregation": KeepGlobal()}, "KeepGlobal weights the whole population"),
        (Tiered(), {"algorithm": Mime()}, "Mime has phases anchor, train"),
        (
            Tiered(),
            {"selection": TiFL(2, tiers=2)},
            "TiFL compares clients' reports about one model, and Tiered lets clients work on several",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(pacing, more, text):
    with pytest.raises(CompositionError, match=text):
        job(pacing, **more).learner(DATA)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"tiers": 0}, "tiers=0"),
        ({"by": "luck"}, "'luck'"),
        ({"weights": "odd"}, "'odd'"),
        ({"deadline": 0.0}, "deadline=0.0"),
    ],
)
def test_bad_settings(settings, text):
    with pytest.raises(ConfigError, match=text):
        Tiered(**settings)
