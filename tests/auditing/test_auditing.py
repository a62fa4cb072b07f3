"""Audits of real trainings: honest noise is not refuted, weak noise is."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.auditing import Canaries, audit
from atoll.auditing.run import audit_replies, averaging, central
from atoll.core.errors import ConfigError, DataError
from atoll.mechanisms import CentralDP
from atoll.report import write_report
from atoll.stages import Clip, FedSel, LocalLaplace, RandomisedSigns


def users(parties=40):
    return atoll.data.iid(atoll.data.digits(), parties=parties, seed=0)


def test_honest_noise_is_not_refuted_and_weak_noise_is(tmp_path):
    few = Canaries(count=200, guesses=150)

    def found(epsilon, sabotage, folder=None):
        return audit(lambda p: central(p, epsilon, 1e-5, 2, sabotage), users(), few, folder=folder)

    honest = found(2.0, 1.0)
    assert honest.claimed == pytest.approx(2.0, rel=1e-4)  # the ledger's own
    assert honest.lower <= honest.claimed
    caught = found(2.0, 0.1, tmp_path / "run")
    assert caught.claimed == pytest.approx(2.0, rel=1e-4)  # the ledger knows nothing
    assert caught.lower > caught.claimed
    assert caught.right >= 140
    page = write_report(tmp_path / "run").read_text()
    assert "Audit by canaries" in page
    assert "which refutes the claimed epsilon 2" in page


def test_every_canary_touches_its_own_feature_alone_and_others_none():
    planted = Canaries(count=30, seed=1).plant(users(5))
    assert planted.features == 64 + 30
    names = [name for name in planted.islands.names if name.startswith("canary-")]
    assert names == [f"canary-{i}" for i in np.flatnonzero(planted.coins)]
    for i in range(len(planted.islands)):
        shard = planted.islands.shard(i)
        own = np.argwhere(shard.x[:, 64:])
        if shard.name.startswith("canary-"):
            at = int(shard.name.removeprefix("canary-"))
            assert own.tolist() == [[0, at]]
            assert shard.y.tolist() == [planted.labels[at]]
            assert not shard.x[:, :64].any()
        else:
            assert not len(own)


@pytest.mark.parametrize("unit", ["user", "example"])
def test_without_noise_every_coin_is_read(unit):
    planted = Canaries(count=60, unit=unit, seed=2).plant(users(10))
    job = atoll.Training(
        model=atoll.models.linear(planted.features, planted.classes),
        algorithm=atoll.FedAvg(lr=0.5),
        selection=atoll.Everyone(),
        uplink=[Clip(1.0)] if unit == "user" else [],
        rounds=1,
    )
    scores = planted.scores(atoll.simulate(job, planted.islands, engine="inline").params)
    assert planted.audit(scores, 1.0, 1e-5).right == 30
    assert (scores[planted.coins] > 0).all()
    assert not scores[~planted.coins].any()


def test_replaced_canaries_are_all_there_with_one_of_two_labels():
    planted = Canaries(count=50, neighbours="replace-one", seed=3).plant(users(5))
    assert len(planted.islands) == 55
    assert planted.others is not None
    assert (planted.labels != planted.others).all()
    has = np.array([planted.islands.shard(f"canary-{i}").y[0] for i in range(50)])
    assert np.array_equal(has, np.where(planted.coins, planted.labels, planted.others))


def test_what_cannot_be_audited_is_refused():
    with pytest.raises(ConfigError, match="claims no epsilon"):
        audit(atoll.Training(model=atoll.models.linear(1, 2), rounds=1), users(5), Canaries(count=10))
    regression = atoll.data.iid(
        atoll.data.Dataset({"x": np.ones((9, 1)), "y": np.linspace(0, 1, 9)}), parties=3, seed=0
    )
    with pytest.raises(DataError, match="random labels"):
        Canaries(count=10).plant(regression)
    with pytest.raises(ConfigError, match="guesses=11"):
        Canaries(count=10, guesses=11)
    with pytest.raises(ConfigError, match="the canaries need"):
        Canaries(count=10).plant(users(5)).scores(np.zeros((3, 10)))


@pytest.mark.parametrize(
    ("stage", "apart", "claimed"),
    [
        (LocalLaplace(1.0, 1.0), False, 1.0),
        (RandomisedSigns(0.5, 1.0, 2), False, 1.0),
        (FedSel(0.5, 2.0, 0.25, 1), True, 2.0),
    ],
    ids=["laplace", "signs", "fedsel"],
)
def test_replies_of_local_randomisers_are_not_refuted(stage, apart, claimed):
    found = audit_replies(stage, canaries=200, apart=apart, confidence=0.9999)
    assert found.claimed == pytest.approx(claimed, rel=1e-6)
    assert found.lower <= found.claimed
    assert (found.unit, found.neighbours, found.adversary) == ("user", "replace-one", "server")


def test_the_bound_of_laplace_replies_is_nearly_tight():
    assert 1.0 < audit_replies(LocalLaplace(1.0, 2.0), canaries=800, confidence=0.9999).lower <= 2.0


def test_a_secret_sample_that_charges_everybody_is_claimed():
    few = Canaries(count=40)
    mechanism = CentralDP(noise=2.0, clip=1.0, delta=1e-5)
    found = audit(lambda p: averaging(p, mechanism, 2, selection=atoll.selection.PoissonSample(0.5)), users(), few)
    assert 0 < found.claimed < 3
    assert found.lower <= found.claimed
