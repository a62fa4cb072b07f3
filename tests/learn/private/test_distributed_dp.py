"""Distributed differential privacy: shared noise under secure sums, of the size that is claimed, and refused where it would be too little."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.algorithms import FedAvg, Scaffold
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Ledger
from atoll.learn import Training
from atoll.learn.private.claim import Attendance
from atoll.mechanisms import DistributedDP
from atoll.pacing import Synchronous
from atoll.privacy import epsilon_of, spent
from atoll.reducers import SecureAggregation, TwoServers
from atoll.runs.config import RunConfig, validated
from atoll.secure import LatticeNoise
from atoll.selection import Everyone, Uniform
from atoll.stages import GaussianNoise, RandomK, ScalarQuantizer, TopK
from atoll.testing import Timetable

PARTIES = 12
DATA = atoll.data.iid(atoll.data.digits(), parties=PARTIES, seed=0)
SHARED = {"noise": 1.5, "clip": 1.0, "least": 8}


def job(rounds: int = 1, algorithm: Any = None, **more: Any) -> Training:
    parts: dict[str, Any] = {
        "privacy": DistributedDP(**SHARED),
        "reducer": SecureAggregation(),
        "pacing": Synchronous(quorum=8),
        "selection": Everyone(),
        **more,
    }
    return Training(model=atoll.models.linear(64, 10), algorithm=algorithm or FedAvg(lr=0.1), rounds=rounds, **parts)


def run(training: Training, **world: Any) -> Any:
    return atoll.simulate(training, DATA, **{"engine": "batched", "seed": 3, "progress": False, **world})


def stage_of(training: Training) -> LatticeNoise:
    made = training.installed(DATA, training.learner(DATA))
    last = made.uplink[-1]
    assert isinstance(last, LatticeNoise)
    return last


def composed(**parts: Any) -> None:
    training = job(**parts)
    training.program(DATA, training.learner(DATA))


def moved(training: Training) -> np.ndarray[Any, Any]:
    """What one round without learning adds to the model: the noise alone."""
    made = run(training)
    start = training.learner(DATA).init(atoll.core.Rng(0))
    return np.concatenate([(made.params[k] - start[k]).ravel() for k in start])


@pytest.mark.every(2)
@pytest.mark.parametrize("law", ["skellam", "discrete-gaussian", "mixture"])
def test_the_model_has_the_noise_that_is_claimed(law: Any) -> None:
    """Twelve replies with noise for eight, over twelve, by chi-square within six deviations."""
    training = job(algorithm=FedAvg(lr=1e-12), privacy=DistributedDP(**SHARED, law=law))
    stage = stage_of(training)
    noise, expected = moved(training), stage.deviation(PARTIES) / PARTIES
    assert expected == pytest.approx(2 * 1.5 * 1.01 * math.sqrt(12 / 8) / 12, rel=1e-3)
    z = noise / expected
    assert abs((z**2).sum() - len(z)) < 6 * math.sqrt(2 * len(z))


def test_clients_that_may_collude_do_not_count() -> None:
    """With a quarter of eight corrupt, six add what is needed."""
    honest, corrupt = (stage_of(job(privacy=DistributedDP(**SHARED, corrupt=c))) for c in (0.0, 0.25))
    assert (honest.sharing, corrupt.sharing) == (8, 6)
    assert corrupt.deviation(12) == pytest.approx(honest.deviation(12) * math.sqrt(8 / 6), rel=1e-3)


@pytest.mark.parametrize("engine", ["inline", "batched"])
def test_claim_row_and_ledger_say_the_same(engine: str, tmp_path: Any) -> None:
    privacy = DistributedDP(epsilon=6.0, delta=1e-5, clip=1.0, least=8)
    training = job(rounds=3, privacy=privacy)
    made = run(training, engine=engine, folder=tmp_path / "run")
    claim = made.prepared.claim
    assert 5.99 < claim.epsilon <= 6.0
    assert made.metrics.last("epsilon") == pytest.approx(claim.epsilon, rel=1e-9)
    ledger = Ledger(tmp_path / "run" / "checkpoints" / "ledger.jsonl")
    charged = spent(ledger, 1e-5, "rdp", "server", "add-remove")
    assert {f"{v:.9g}" for v in charged.values()} == {f"{claim.epsilon:.9g}"}
    assert "against the server" in str(claim)
    assert "at least 8 of the 8 or more clients of a sum do not tell the server their noise" in claim.assuming
    assert "loss" not in made.metrics[-1]  # measurements stay


@pytest.mark.parametrize(
    "engine", ["batched", *(pytest.param(e, marks=pytest.mark.slow) for e in ("processes", "socket"))]
)
def test_engines_give_one_model_from_one_secret(engine: str) -> None:
    """Real processes and sockets among them."""
    alone, other = (run(job(rounds=2), engine=e, secret_seed=5).params["weight"] for e in ("inline", engine))
    np.testing.assert_allclose(alone, other, atol=1e-5)


def test_noise_is_the_least_that_keeps_epsilon_on_its_own_grid() -> None:
    privacy = DistributedDP(epsilon=2.0, delta=1e-5, clip=1.0, least=8, neighbours="replace-one")
    training = job(rounds=4, privacy=privacy)
    claim = training.installed(DATA, training.learner(DATA)).claim
    assert claim is not None
    assert privacy.spent(claim.attendance, claim.noise * 0.999) > 2.0 >= claim.epsilon
    stage = stage_of(training)
    assert stage.replaced
    assert epsilon_of(((stage.released(), 4),), 1e-5, "rdp") == pytest.approx(claim.epsilon)


def test_values_of_a_round_are_together_one_release() -> None:
    """SCAFFOLD sends two values, each with sqrt(2) times the noise."""
    one, two = (stage_of(job(algorithm=a)) for a in (FedAvg(lr=0.1), Scaffold(lr=0.1)))
    assert two.multiplier == pytest.approx(one.multiplier * math.sqrt(2))
    training = job(algorithm=Scaffold(lr=0.1), rounds=2)
    made = run(training)
    assert made.metrics.last("epsilon") == pytest.approx(made.prepared.claim.epsilon, rel=1e-9)


@pytest.mark.parametrize("gone", [0, 3])
def test_noise_that_the_sum_does_not_need_is_taken_back(gone: int) -> None:
    """Twelve or nine replies with the noise of eight, by chi-square within six deviations; the ledger says the epsilon of what remains."""
    privacy = DistributedDP(**SHARED, remove_excess=True)
    training = job(algorithm=FedAvg(lr=1e-12), privacy=privacy)
    cost = Timetable(lost={":masked/": [f"client-{i}" for i in range(gone)]})
    made, start = run(training, devices=cost), training.learner(DATA).init(atoll.core.Rng(0))
    noise = np.concatenate([(made.params[k] - start[k]).ravel() for k in start])
    stage, replies = stage_of(training), PARTIES - gone
    assert made.metrics.last("replied") == replies
    assert (stage.most, stage.deviation(replies)) == (PARTIES, pytest.approx(2 * 1.5 * 1.01, rel=1e-3))
    z = noise * replies / stage.deviation(replies)
    assert abs((z**2).sum() - len(z)) < 6 * math.sqrt(2 * len(z))
    claim = made.prepared.claim
    assert made.metrics.last("epsilon") == pytest.approx(claim.epsilon, rel=1e-9)
    kept = stage_of(job()).released()
    assert epsilon_of(((kept, 1),), 1e-5, "rdp") == pytest.approx(claim.epsilon, rel=1e-3)
    assert "at most 0 clients of a sum tell the server their noise" in claim.assuming


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["batched", "processes", "socket"])
def test_engines_take_back_the_same_noise(engine: str) -> None:
    """Real processes and sockets among them."""
    training = job(rounds=2, privacy=DistributedDP(**SHARED, law="mixture", remove_excess=True))
    alone, other = (run(training, engine=e, secret_seed=5).params["weight"] for e in ("inline", engine))
    np.testing.assert_allclose(alone, other, atol=1e-5)


def test_who_knows_the_seed_does_not_know_the_noise() -> None:
    one, two = run(job()), run(job())
    assert np.abs(one.params["weight"] - two.params["weight"]).min() > 0


@pytest.mark.parametrize("bits", [12, 16, 24, 32])
def test_grids_follow_from_bits_and_sums_do_not_wrap(bits: int) -> None:
    from atoll.stages.coded.rotation import bound_entry

    stage = stage_of(job(privacy=DistributedDP(**SHARED, bits=bits)))
    assert stage.wraps(PARTIES, 650, bound_entry(650, 2.0**-40 / PARTIES)) <= 2.0**-40
    coarser = stage_of(job(privacy=DistributedDP(**SHARED, bits=bits - 2)))
    assert stage.step <= coarser.step < stage.clip / 2


def test_pruning_under_noise_trains_with_the_same_promise() -> None:
    """Prasad et al. 2022, option (a): a quarter of the rotated entries, the same for all clients, in words with noise of its own bound."""
    privacy = DistributedDP(**SHARED, bound=1.1 * math.sqrt(4))
    whole, pruned = job(rounds=3), job(rounds=3, privacy=privacy, uplink=[RandomK(0.25, shared=True)])
    assert stage_of(pruned).clip == pytest.approx(2.2)
    made, full = run(pruned), run(whole)
    assert made.prepared.claim.epsilon == pytest.approx(full.prepared.claim.epsilon, rel=0.01)
    assert made.metrics.last("bits_declared") < 0.3 * full.metrics.last("bits_declared")
    # Without a bound of its own, all of a client's change may be in the entries that stay.
    assert stage_of(job(uplink=[RandomK(0.25, shared=True)])).clip == 8.0


def test_local_noise_goes_under_any_reducer_and_costs_more() -> None:
    training = job(
        privacy=DistributedDP(noise=1.5, clip=1.0, local=True), reducer=atoll.core.Plain(), pacing=Synchronous()
    )
    assert stage_of(training).deviation(12) == pytest.approx(stage_of(job()).deviation(12) * math.sqrt(8), rel=1e-2)
    assert run(training).metrics.last("epsilon") == pytest.approx(run(job()).metrics.last("epsilon"), rel=1e-2)


def test_a_file_names_it() -> None:
    config = validated(
        RunConfig,
        {
            "data": {"source": "digits"},
            "model": {"name": "linear", "features": 64, "outputs": 10},
            "privacy": {"name": "DistributedDP", "epsilon": 2.0, "delta": 1e-5, "clip": 0.5, "least": 6},
        },
        "c.yaml",
    )
    assert config.privacy is not None
    assert config.privacy.build("privacy") == DistributedDP(epsilon=2.0, delta=1e-5, clip=0.5, least=6)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "least=None"),
        ({"least": 1}, "2 or more, or use local=True"),
        ({"least": 4, "local": True}, "local noise is not shared"),
        ({"least": 2, "corrupt": 1.5}, "corrupt=1.5"),
        ({"least": 8, "bits": 40}, "bits=40"),
        ({"least": 8, "law": "laplace"}, "law="),
        ({"least": 8, "law": "discrete-gaussian", "remove_excess": True}, "noise in parts must add up"),
        ({"local": True, "remove_excess": True}, "local noise has no excess"),
        ({"least": 8, "clip": -1.0}, "clip=-1.0"),
        ({"least": 8, "bound": 0.0}, "bound=0.0"),
        ({"least": 8, "unit": "example"}, "a mechanism for examples"),
    ],
)
def test_settings_that_promise_nothing_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        DistributedDP(**{"noise": 1.0, "clip": 1.0, **settings})


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"reducer": atoll.core.Plain()}, "shows the server single replies, with too little noise each"),
        (
            {"privacy": DistributedDP(**SHARED, remove_excess=True), "reducer": TwoServers()},
            "leaves such noise in the sum",
        ),
        ({"pacing": Synchronous(quorum=7)}, "a quorum of 7 replies, fewer than the 8"),
        ({"pacing": Synchronous(quorum=0.5)}, "a quorum of 0.5 of 12 clients"),
        ({"aggregation": atoll.aggregation.Rescaled()}, "Rescaled weights them in its own way"),
        ({"uplink": [GaussianNoise(1.0)]}, "GaussianNoise protects the replies already"),
        ({"uplink": [TopK(0.1)]}, "TopK"),
        ({"uplink": [ScalarQuantizer(8)]}, "ScalarQuantizer acts between clip and noise"),
        ({"selection": Uniform(6)}, "quorum=8 replies, but Uniform has rounds of 6"),
        ({"evaluation": atoll.Evaluation(clients=-1)}, "without noise"),
    ],
    ids=["plain", "excess", "quorum", "share", "weights", "two mechanisms", "top-k", "words", "cohort", "measures"],
)
def test_parts_with_which_the_promise_would_not_hold_are_refused(parts: dict[str, Any], said: str) -> None:
    with pytest.raises(CompositionError, match=said):
        composed(**parts)


def test_words_too_short_for_the_noise_say_so() -> None:
    with pytest.raises(ConfigError, match="use bits="):
        stage_of(job(privacy=DistributedDP(noise=200.0, clip=1.0, least=2, bits=8)))


def test_noise_in_too_many_parts_says_so() -> None:
    taking = Attendance(clients=300, rounds=1, values=1, cohort=300.0, entries=650)
    with pytest.raises(ConfigError, match=r"noise in 200 parts.*use least=200 or more"):
        DistributedDP(noise=1.5, clip=1.0, least=100, remove_excess=True).stage(taking, 1.5)


def test_nobody_hides_from_a_server_whether_it_takes_part() -> None:
    """The server sees who is in a sum: against it the claim is for a client whose data are replaced, and costs twice the noise."""
    with pytest.raises(ConfigError, match="neighbours='add-remove' against a server, which sees who takes part"):
        DistributedDP(**SHARED, neighbours="add-remove")
    both = [DistributedDP(**SHARED, **more) for more in ({}, {"adversary": "model", "neighbours": "add-remove"})]
    seen, told = (run(job(algorithm=FedAvg(lr=1e-12), privacy=one)).prepared.claim for one in both)
    assert (seen.neighbours, seen.adversary) == ("replace-one", "server")
    assert seen.epsilon == pytest.approx(told.epsilon, rel=1e-3)  # by the same multiplier of what counts
    widths = [stage_of(job(privacy=one)).deviation(8) for one in both]
    assert widths[0] == pytest.approx(2 * widths[1], rel=0.01)
    assert epsilon_of(tuple((event, 1) for event in told.events), 1e-5, "rdp", "server") > 1.9 * told.epsilon
