"""A server that sees ciphertexts only: the training is that of a server that sees everything, for algorithms whose fold is affine."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.algorithms import FedAdam, FedAvg, FedAvgM, FedDyn, FedNova, FedProx, Scaffold, Signum
from atoll.core.errors import CompositionError, ConfigError, QuorumError
from atoll.core.federation.federation import run_program
from atoll.core.requests.party import Roster
from atoll.core.time.clock import Clock, run
from atoll.core.world import World
from atoll.engines import Inline
from atoll.secure.encrypted import Paillier
from atoll.testing import Timetable
from atoll.testing.conformance.secrecy import Onlooker
from atoll.testing.lying.sites import Rehearsal
from atoll.topology import ServerBlind

pytest.importorskip("gmpy2")
pytest.importorskip("tenseal")

WEAK = ServerBlind(scheme=Paillier(key_bits=256, insecure=True))
DATA = atoll.data.dirichlet(atoll.data.digits(), parties=4, alpha=0.5, seed=0)


FULL = {"lr": 0.1, "batch_size": 10_000}
"""One batch, so that the order in which a site draws its rows does not matter."""


def job_of(algorithm=None, **parts):
    made = {"model": atoll.models.linear(64, 10), "algorithm": algorithm or FedAvg(**FULL), "rounds": 2}
    return atoll.Training(**{**made, "evaluation": atoll.Evaluation(server=False), **parts})


def in_world(job, data, engine, *, virtual=True, **terms):
    learner = job.learner(data)
    registry = {task.name: task for task in job.named_tasks(learner, data)}
    roster = Roster(data.names, others=job.others(len(data)))
    clock = {} if virtual else {"clock": Clock(virtual=False)}
    world = World(data, engine, roster=roster, registry=registry, **clock, **terms)
    return run(run_program(world, job.program(data, learner)), virtual=virtual)[0]


@pytest.mark.parametrize(
    "algorithm",
    [FedAvg(**FULL), FedAvg(**FULL, epochs=2), FedProx(**FULL, mu=0.5), FedAvgM(**FULL)],
    ids=["FedAvg", "2 epochs", "FedProx", "FedAvgM"],
)
def test_it_is_the_training_whose_server_sees_everything(algorithm):
    plain = atoll.simulate(job_of(algorithm), DATA, engine="inline")
    blind = atoll.simulate(job_of(algorithm, topology=ServerBlind()), DATA, engine="inline")
    for name, leaf in plain.params.items():
        np.testing.assert_allclose(blind.params[name], leaf, atol=2e-6)
    assert blind.metrics.column("replied") == [4, 4]
    assert max(blind.metrics.column("consensus")) < 1e-12


@pytest.mark.parametrize(
    "algorithm", [FedAdam(lr=0.1), FedNova(lr=0.1), FedDyn(lr=0.1), Scaffold(lr=0.1), Signum(lr=0.1)],
    ids=["FedAdam", "FedNova", "FedDyn", "Scaffold", "Signum"],
)  # fmt: skip
def test_what_does_not_fold_affinely_is_refused(algorithm):
    with pytest.raises(CompositionError, match=r"ServerBlind (averages|weights|makes|lets) .*"):
        atoll.simulate(job_of(algorithm, topology=ServerBlind()), DATA, engine="inline")


def test_settings_and_cohorts_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match="least=1"):
        ServerBlind(least=1)
    with pytest.raises(ConfigError, match="rsa"):
        ServerBlind(scheme="rsa")
    with pytest.raises(CompositionError, match="rounds of 1 sites"):
        atoll.simulate(job_of(topology=ServerBlind(), selection=atoll.Uniform(1)), DATA, engine="inline")
    with pytest.raises(CompositionError, match="Encrypted combines many replies"):
        job_of(topology=ServerBlind(), reducer=atoll.reducers.Encrypted())


def test_sites_outside_the_cohort_have_the_same_state():
    found = atoll.simulate(job_of(topology=WEAK, selection=atoll.Uniform(2), rounds=3), DATA, engine="inline")
    assert max(found.metrics.column("consensus")) < 1e-12
    assert found.metrics.column("selected") == [2, 2, 2]


@pytest.mark.parametrize("step", ["local", "blind_seal"])
def test_a_lost_site_is_not_in_the_mean_and_takes_it(step):
    lost = {f":{step}/": ["client-1"]}
    found = in_world(job_of(topology=WEAK, rounds=1), DATA, Inline(), cost=Timetable(lost=lost))
    three = DATA.subset([name for name in DATA.names if name != "client-1"])
    alone = atoll.simulate(job_of(topology=WEAK, rounds=1), three, engine="inline")
    assert found.history.column("consensus")[0] < 1e-12
    # The first model follows from the world's seed, the same in both.
    for name, leaf in alone.params.items():
        np.testing.assert_allclose(found.params[name], leaf, atol=2e-6)


@pytest.mark.parametrize(
    ("lost", "why"),
    [
        ({":blind_keys/": [f"client-{i}" for i in range(4)]}, "fewer than the quorum"),
        ({":blind_seal/": ["client-0", "client-1", "client-2"]}, "fewer than the quorum of 2"),
    ],
)
def test_a_round_without_a_key_or_with_one_ciphertext_ends_the_training_or_is_skipped(lost, why):
    job = job_of(topology=WEAK, rounds=1)
    with pytest.raises(QuorumError, match=why):
        in_world(job, DATA, Inline(), cost=Timetable(lost=lost))
    skipped = in_world(
        job.replace(pacing=atoll.Synchronous(on_failure="skip")), DATA, Inline(), cost=Timetable(lost=lost)
    )
    assert skipped.history.column("replied") == [0]


def test_the_server_gets_ciphertexts_and_a_public_key_and_nothing_else():
    onlooker = Onlooker()
    in_world(job_of(topology=WEAK, rounds=2), DATA, onlooker)
    asked = {request.split(":")[-1].split("/")[0] for request in onlooker.sight.asked}
    assert {"blind_keys", "blind_seal", "blind_take", "local"} <= asked
    told: dict[str, set[str]] = {}
    for at in onlooker.sight.words:
        if at.path.startswith(("value/", "totals/")):
            told.setdefault(at.request.split(":")[-1].split("/")[0], set()).add(at.path.split("/")[1].split("[")[0])
    assert told.pop("local") == {"updated"}
    assert told.pop("blind_seal") == {"sealed", "public", "form"}
    assert set(told) <= {"peek", "distance"}  # the simulation's observer


@pytest.mark.network
def test_between_real_sites_the_model_stays_there():
    job = job_of(topology=WEAK.__class__(), rounds=1, evaluation=atoll.Evaluation(server=False, clients=0))
    found = in_world(job, DATA, Rehearsal(4), virtual=False)
    assert found.params == {}
    assert found.history.column("replied") == [4]
    assert not {name for row in found.history for name in row if name in ("consensus", "loss")}
    measured = job.replace(evaluation=atoll.Evaluation(server=False, clients=-1))
    with pytest.raises(CompositionError, match="no model to evaluate"):
        in_world(measured, DATA, Rehearsal(4), virtual=False)
