"""NbAFL: noise at the clients and at the server, as Wei et al. 2020 have it, with a sensitivity that always holds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.algorithms import FedAvg, Scaffold
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Ledger
from atoll.core.facets import facet
from atoll.core.requests.island import Secret
from atoll.core.requests.party import Roster
from atoll.core.requests.results import Combined
from atoll.learn import LocalWork, RoundInfo, Training
from atoll.learn.algorithm import Private
from atoll.learn.private.nbafl import BroadcastNoise, ClientRelease, broadcast_deviation
from atoll.mechanisms import NbAFL
from atoll.selection import Everyone, Uniform

DATA = atoll.data.iid(atoll.data.digits(), parties=10, seed=0)


@pytest.mark.parametrize(("t", "length", "n"), [(25, 2, 50), (100, 5, 16), (10, 10, 4), (10, 5, 4)])
def test_the_servers_noise_is_that_of_the_theorem(t: int, length: int, n: int) -> None:
    """``sigma_U = 2 c L C / (m epsilon)`` and ``sigma_D = 2 c C sqrt(T^2 - L^2 N) / (m N epsilon)`` if ``T > L sqrt(N)``, else 0."""
    c, clip, m, epsilon = math.sqrt(2 * math.log(1.25 / 0.01)), 1.5, 40, 6.0
    up = 2 * c * length * clip / (m * epsilon)
    want = 2 * c * clip * math.sqrt(t * t - length**2 * n) / (m * n * epsilon) if t > length * math.sqrt(n) else 0.0
    assert broadcast_deviation(up, t, length, n) == pytest.approx(want)


VECTORS = st.lists(st.floats(-1e9, 1e9), min_size=3, max_size=3).map(np.array)


@given(VECTORS, VECTORS)
def test_no_two_clients_models_are_further_apart_than_declared(one: Any, other: Any) -> None:
    release = ClientRelease(base=FedAvg(), tau=0.8, sigma=1e-12)
    sent = []
    for model in (one, other):
        local = {"params": {"w": model}, "drawn": {"noise": {"params": {"w": np.zeros(3)}}}}
        reply, _ = release.finish(local, {"params": {"w": np.zeros(3)}, "lr": 0.1}, None, LocalWork(4.0, 1.0))
        sent.append(reply["update"].value["w"])
    assert np.linalg.norm(sent[0] - sent[1]) <= 2 * 0.8 * (1 + 1e-9)


def job(**settings: Any) -> Training:
    mechanism = {"clip": 1.0, "accountant": "rdp", **settings}
    return Training(
        model=atoll.models.linear(64, 10),
        algorithm=FedAvg(lr=0.1),
        selection=Everyone(),
        rounds=4,
        privacy=NbAFL(**mechanism),
    )


def test_every_client_pays_for_what_it_sends(tmp_path: Any) -> None:
    made = atoll.simulate(job(noise=2.0), DATA, engine="inline", seed=1, folder=tmp_path / "run", progress=False)
    lines = [e for e in Ledger(tmp_path / "run" / "checkpoints" / "ledger.jsonl") if e["kind"] == "gaussian"]
    assert len(lines) == 4 * 10
    assert {(e["noise_multiplier"], e["unit"], e["sampling"]) for e in lines} == {(2.0, "user", 1.0)}
    assert "against the server" in str(made)
    assert made.metrics.last("epsilon") == pytest.approx(made.prepared.claim.epsilon)


def test_two_models_of_a_client_share_the_noise_of_a_round() -> None:
    training = job(noise=2.0).replace(algorithm=Scaffold(lr=0.1))
    made = training.installed(DATA, training.learner(DATA))
    (event,) = facet(made.algorithm, Private).events(5)
    assert event.noise_multiplier == pytest.approx(2.0 * math.sqrt(event.count))


def test_fewer_exposures_need_less_noise_and_end_the_training(tmp_path: Any) -> None:
    one = job(epsilon=8.0, delta=1e-3).installed(DATA).claim
    mechanism = NbAFL(epsilon=8.0, delta=1e-3, clip=1.0, accountant="rdp", contacts=1)
    training = job(noise=1.0).replace(privacy=mechanism, selection=Uniform(2), rounds=12)
    made = training.installed(DATA, training.learner(DATA))
    assert made.claim.noise < one.noise
    assert made.aggregation.deviation == pytest.approx(broadcast_deviation(2 * made.claim.noise, 12, 1, 2))
    assert made.budget.epsilon == 8.0


def test_the_servers_noise_is_secret_and_of_its_size() -> None:
    parties = Roster(["a"]).all()
    sums = Combined({"update": np.zeros(50_000)}, 1, {"update": 1.0}, parties, parties, kinds={"update": "mean"})
    found, _ = BroadcastNoise(deviation=0.3).combine(sums, {}, None, RoundInfo(1, 1, 1, 1, secret=Secret(b"s")))
    assert found["update"].std() == pytest.approx(0.3, rel=0.02)
    ends = [
        atoll.simulate(
            job(noise=1e-9).replace(
                privacy=NbAFL(epsilon=1e9, delta=0.01, clip=5.0, accountant="rdp", contacts=1), selection=Uniform(2), rounds=3
            ),
            DATA, engine="inline", seed=1, progress=False,
        ).params["weight"]
        for _ in range(2)
    ]  # fmt: skip
    assert np.abs(ends[0] - ends[1]).max() > 0


def test_what_it_cannot_promise_is_refused() -> None:
    for settings, said in (
        ({"clip": 0.0, "noise": 1.0}, "clip=0.0"),
        ({"clip": 1.0, "noise": 1.0, "contacts": 2}, "contacts=2 with noise"),
        ({"clip": 1.0, "epsilon": 1.0, "delta": 0.1, "contacts": 0}, "contacts=0"),
        ({"clip": 1.0, "noise": 1.0, "neighbours": "add-remove"}, "neighbours='add-remove'"),
    ):
        with pytest.raises(ConfigError, match=said):
            NbAFL(**settings)
    with pytest.raises(CompositionError, match="Rescaled weights them in its own way"):
        job(noise=1.0).replace(aggregation=atoll.aggregation.Rescaled())


@pytest.mark.parametrize("name", ["LocalAdam", "LocalAdaGrad", "LocalRMSProp"])
def test_a_base_that_takes_roots_of_what_noise_changes_is_refused(name: str) -> None:
    """What is kept carries noise of any sign, and the root of a negative mean square would be no number in the second round."""
    kind = getattr(atoll.algorithms, name)
    with pytest.raises(CompositionError, match=f"{name} takes roots of what it remembers"):
        ClientRelease(base=kind(), tau=1.0, sigma=1.0)
    assert ClientRelease(base=kind(memory="round"), tau=1.0, sigma=1.0).outgoing == ("params",)
