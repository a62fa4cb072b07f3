"""Local and shuffled mechanisms: what they install, what they claim, what the ledger says, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.algorithms import FedAvg, Scaffold
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Ledger
from atoll.core.requests.stage import StageContext
from atoll.mechanisms import CentralDP, FedSelDP, GaussianLDP, LaplaceLDP, ShuffledDP, SignsLDP
from atoll.privacy import shuffled_epsilon, spent
from atoll.runs import parse_config
from atoll.selection import PoissonSample
from atoll.stages import Anonymous, LocalGaussian, LocalLaplace

DATA = atoll.data.iid(atoll.data.digits(), parties=20, seed=0)
MANY = atoll.data.iid(atoll.data.digits(), parties=400, seed=0)
WHOLE = atoll.Synchronous(quorum=1.0)
VIRTUAL = atoll.SecureAggregation(masks="virtual")
LOCAL = {
    "gaussian": GaussianLDP(epsilon=4.0, delta=1e-5, clip=1.0),
    "laplace": LaplaceLDP(epsilon=4.0, clip=1.0),
    "signs": SignsLDP(epsilon=4.0, limit=0.05, entries=4),
    "fedsel": FedSelDP(epsilon=4.0, limit=0.05, entries=4),
}


def job(privacy, **more):
    parts = {"selection": atoll.Everyone(), "rounds": 2, "algorithm": FedAvg(lr=0.1), **more}
    return atoll.Training(model=atoll.models.linear(64, 10), privacy=privacy, **parts)


def run(training, data=DATA, **world):
    return atoll.simulate(training, data, **{"engine": "inline", "progress": False, **world})


def ledger(folder):
    return Ledger(folder / "checkpoints" / "ledger.jsonl")


@pytest.mark.every(3)
@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("algorithm", [FedAvg(lr=0.1), Scaffold(lr=0.1)], ids=["one value", "two values"])
def test_the_ledger_of_every_client_is_the_claim_whatever_is_sent(name, algorithm, tmp_path):
    mechanism = LOCAL[name]
    made = run(job(mechanism, algorithm=algorithm), folder=tmp_path / "run")
    claim = made.prepared.claim
    assert claim.epsilon <= 4.0
    assert claim.epsilon == pytest.approx(4.0, rel=1e-4)
    assert str(claim).startswith("epsilon 4")
    assert "one user (replace-one neighbours) against the server" in str(claim)
    assert claim.delta == (1e-5 if name == "gaussian" else 0.0)
    costs = spent(ledger(tmp_path / "run"), claim.delta, "pld" if claim.delta else "exact", "server", "replace-one")
    assert len(costs) == 20
    assert np.allclose(list(costs.values()), claim.epsilon, rtol=1e-6)
    assert made.metrics.last("epsilon") == pytest.approx(claim.epsilon, rel=1e-6)


def test_noise_is_not_of_the_seed_and_weights_are_equal():
    one, two = run(job(LOCAL["laplace"])), run(job(LOCAL["laplace"], rounds=2))
    assert np.abs(one.params["weight"] - two.params["weight"]).min() > 0
    learner = job(LOCAL["laplace"]).learner(DATA)
    made = job(LOCAL["laplace"]).installed(DATA, learner)
    reply = made.aggregation.algorithm(FedAvg()).finish(
        {"params": {"w": np.ones(2)}}, {"params": {"w": np.zeros(2)}}, None, atoll.learn.LocalWork(500.0, 3.0)
    )[0]
    assert float(reply["update"].weight) == 1.0


@pytest.mark.quick("server-model-None")
@pytest.mark.parametrize(
    ("shuffler", "adversary", "reducer"), [("server", "model", None), ("reducer", "server", VIRTUAL)]
)
def test_shuffled_replies_need_less_noise_for_the_same_epsilon(shuffler, adversary, reducer, tmp_path):
    local = LaplaceLDP(noise=1.0, clip=1.0)
    mechanism = ShuffledDP(epsilon=1.0, delta=1e-5, local=local, shuffler=shuffler, adversary=adversary)
    training = job(mechanism, pacing=WHOLE, rounds=1, **({} if reducer is None else {"reducer": reducer}))
    made = run(training, MANY, folder=tmp_path / "run")
    claim = made.prepared.claim
    alone = run(job(LaplaceLDP(epsilon=1.0, clip=1.0), rounds=1)).prepared.claim
    assert claim.noise < alone.noise
    assert claim.epsilon == pytest.approx(shuffled_epsilon(1 / claim.noise, 400, 1e-5), rel=2e-3)
    costs = spent(ledger(tmp_path / "run"), 1e-5, "pld", adversary, "replace-one")
    assert max(costs.values()) == pytest.approx(claim.epsilon, rel=1e-6)
    seen = spent(ledger(tmp_path / "run"), 1e-5, "pld", "server", "replace-one")
    assert (max(seen.values()) > 1.5 * claim.epsilon) == (shuffler == "server")  # who shuffles sees single replies
    assert any(("trusted" if shuffler == "server" else "secure sum") in line for line in claim.assuming)


def test_a_party_refuses_a_sum_in_which_it_would_not_hide():
    stage = Anonymous(LocalLaplace(), clients=10, shuffled_by="reducer")
    seeds = {"keys": np.zeros(1, np.uint64), "seeds": np.zeros((1, 32), np.uint8)}
    value = {"w": np.zeros(3)}
    stage.encode(value, StageContext(replies=10, hidden=True, **seeds))
    for replies, hidden in ((9, True), (10, False)):
        with pytest.raises(CompositionError, match="counted as one of 10"):
            stage.encode(value, StageContext(replies=replies, hidden=hidden, **seeds))


def test_what_does_not_hold_is_refused_with_the_remedy():
    local = LaplaceLDP(noise=1.0, clip=1.0)
    shuffled = ShuffledDP(noise=1.0, local=local, shuffler="server")
    with pytest.raises(ConfigError, match="LaplaceLDP protects neighbours 'replace-one' only"):
        LaplaceLDP(epsilon=1.0, clip=1.0, neighbours="add-remove")
    with pytest.raises(ConfigError, match="would hide replies from itself"):
        ShuffledDP(noise=1.0, local=local, shuffler="server", adversary="server")
    with pytest.raises(ConfigError, match="no epsilon without a delta"):
        ShuffledDP(noise=1.0, local=GaussianLDP(noise=1.0, clip=1.0), shuffler="server")
    with pytest.raises(ConfigError, match="has no epsilon of its own"):
        Anonymous(LocalGaussian())
    with pytest.raises(CompositionError, match=r"quorum=1\.0"):
        run(job(shuffled))
    with pytest.raises(CompositionError, match="shows single replies to the server"):
        run(job(ShuffledDP(noise=1.0, local=local, shuffler="reducer", adversary="server"), pacing=WHOLE))
    with pytest.raises(CompositionError, match="nobody knows beforehand"):
        run(job(shuffled, pacing=WHOLE, selection=PoissonSample(0.5)))
    with pytest.raises(CompositionError, match="weights them in its own way"):
        run(job(local, aggregation=atoll.aggregation.EqualWeights()))
    with pytest.raises(ConfigError, match=r"clip=-1\.0"):
        GaussianLDP(noise=1.0, clip=-1.0)
    assert CentralDP(noise=1.0, clip=1.0).protects["adversary"] == ("clients", "model")


def test_a_shuffled_mechanism_can_be_written_in_a_file():
    local = {"name": "LaplaceLDP", "noise": 1.0, "clip": 2.0}
    text = {"name": "ShuffledDP", "epsilon": 1.0, "delta": 1e-5, "local": local, "shuffler": "server"}
    config = parse_config(
        {
            "data": {"source": "digits", "partition": {"name": "iid", "parties": 10}},
            "model": {"name": "linear", "features": 64, "outputs": 10},
            "selection": "Everyone",
            "pacing": {"name": "Synchronous", "quorum": 1.0},
            "privacy": text,
        },
        "here",
    )
    assert config.made().privacy.local == LaplaceLDP(noise=1.0, clip=2.0)
