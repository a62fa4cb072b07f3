"""Laws of the methods that correct client drift, on quadratics whose optimum is known."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.algorithms import (
    VRLSGD,
    Accelerated,
    CompactEstimate,
    FedDyn,
    FedNova,
    LocalSVRG,
    Mime,
    MimeLite,
    MimeSVRG,
    Scaffold,
    ServerOptimised,
    Upcycled,
)
from atoll.core.algebra import tree as T
from atoll.core.errors import CheckpointError, CompositionError, ConfigError, QuorumError
from atoll.core.world import World
from atoll.engines import ENGINES
from atoll.learn.algorithm import LocalWork, Stragglers
from atoll.learn.transforms import Momentum
from atoll.learn.wrapped import dry_reply
from atoll.models.quadratic import Quadratic, quadratics
from atoll.testing import check_algorithm, killed_and_resumed
from tests.support.drift_toys import Loop

T5 = {"lr": 0.02, "steps": 5, "batch_size": None}
ALL = (
    Scaffold(**T5),
    Scaffold(option=1, by_examples=True, **T5),
    VRLSGD(**T5),
    CompactEstimate(**T5),
    FedDyn(alpha=3.0, **T5),
    MimeSVRG(**T5),
    Mime(**T5),
    MimeLite(**T5),
    FedNova(**T5),
    FedNova(momentum=0.5, **T5),
    LocalSVRG(**T5),
)
EXACT = [a for a in ALL if a.card.unbiased]
SLOW = Mime  # its momentum swings around the optimum for long: it gets more rounds than the others


def name(algorithm):
    return f"{type(algorithm).__name__}-{getattr(algorithm, 'option', '')}-{getattr(algorithm, 'momentum', '')}"


def seen(algorithm, seed, rounds, steps, clients=4):
    """After some rounds with cohorts drawn at random, and clients that take different numbers of steps."""
    draw = np.random.default_rng(seed)
    loop = Loop(algorithm, clients=clients, seed=seed, steps=draw.integers(1, steps + 1, clients).tolist())
    for _ in range(rounds):
        loop.round(draw.choice(clients, draw.integers(1, clients + 1), replace=False))
    return loop


def mean_state(loop, key):
    return np.mean([np.zeros(3) if c is None else c[key]["w"] for c in loop.clients], axis=0)


INVARIANTS = [
    (Scaffold(**T5), "control", "control"),
    (Scaffold(option=1, **T5), "control", "control"),
    (CompactEstimate(**T5), "estimate", "gradient"),
    (FedDyn(alpha=3.0, **T5), "h", "slope"),
]


@pytest.mark.parametrize(("algorithm", "server", "client"), INVARIANTS, ids=lambda a: str(a)[:12])
@given(seed=st.integers(0, 999), rounds=st.integers(0, 8))
@settings(max_examples=15, deadline=None)
def test_what_the_server_keeps_is_the_mean_of_what_the_clients_keep(algorithm, server, client, seed, rounds):
    loop = seen(algorithm, seed, rounds, steps=6)
    np.testing.assert_allclose(loop.state[server]["w"], mean_state(loop, client), rtol=1e-9, atol=1e-9)
    assert rounds == 0 or np.abs(loop.state[server]["w"]).max() > 0


@given(seed=st.integers(0, 999), rounds=st.integers(1, 8))
@settings(max_examples=15, deadline=None)
def test_the_corrections_of_vrl_sgd_cancel(seed, rounds):
    loop = Loop(VRLSGD(**T5), seed=seed).rounds(rounds)
    sent = loop.algorithm.broadcast(loop.state, "train")
    deltas = [loop.algorithm.start(sent, client)["delta"]["w"] for client in loop.clients]
    np.testing.assert_allclose(np.sum(deltas, axis=0), 0.0, atol=1e-9)
    assert np.abs(deltas).max() > 1e-3


@pytest.mark.parametrize(
    "algorithm", [a for a in ALL if not isinstance(a, (Mime, FedDyn))] + [MimeSVRG(**T5)], ids=name
)
def test_one_step_by_everyone_is_gradient_descent(algorithm):
    loop, w = Loop(replace(algorithm, steps=1)), np.zeros(3)
    for _ in range(10):
        w = w - 0.02 * loop.mean_gradient(w)
        np.testing.assert_allclose(loop.round().w, w, rtol=1e-10, atol=1e-10)


AROUND = [
    lambda base: ServerOptimised(base=base, transforms=(Momentum(0.3),)),
    lambda base: Upcycled(base=base, coefficient=0.2),
    lambda base: Accelerated(base=base, transforms=(Momentum(0.3),), memory="client"),
]


@pytest.mark.every(4)  # each wrapper twice
@pytest.mark.parametrize("wrap", AROUND, ids=["server momentum", "upcycled", "local momentum"])
@pytest.mark.parametrize("algorithm", EXACT, ids=name)
def test_the_optimum_is_reached_through_wrappers_too(algorithm, wrap):
    assert Loop(wrap(algorithm)).rounds(300 if type(algorithm) is SLOW else 150).gap < 1e-5


@pytest.mark.parametrize("wrap", AROUND[:2], ids=["server momentum", "upcycled"])
def test_the_corrections_of_vrl_sgd_cancel_where_the_model_is_moved_beyond_the_average(wrap):
    loop = Loop(wrap(VRLSGD(**T5))).rounds(6)
    sent = loop.algorithm.broadcast(loop.state, "train")
    assert "average" in sent
    deltas = [loop.algorithm.start(sent, client)["delta"]["w"] for client in loop.clients]
    np.testing.assert_allclose(np.sum(deltas, axis=0), 0.0, atol=1e-9)
    plain = Loop(VRLSGD(**T5)).rounds(3)
    assert "average" not in plain.algorithm.broadcast(plain.state, "train")


@pytest.mark.every(2)  # 200 to 350 rounds each
@pytest.mark.parametrize("algorithm", EXACT, ids=name)
def test_many_steps_still_reach_the_optimum(algorithm):
    assert Loop(algorithm).rounds(350 if type(algorithm) is SLOW else 200).gap < 1e-12


def test_fedavg_with_many_steps_does_not():
    assert Loop(atoll.FedAvg(**T5)).rounds(200).gap > 1e-5


@pytest.mark.parametrize("algorithm", [FedNova(**T5), LocalSVRG(**T5)], ids=name)
def test_others_are_fedavg_where_steps_are_equal_and_gradients_full(algorithm):
    np.testing.assert_allclose(Loop(algorithm).rounds(40).w, Loop(atoll.FedAvg(**T5)).rounds(40).w, rtol=1e-9)


@pytest.mark.slow
def test_with_a_sampled_cohort_mime_keeps_a_floor_and_stateful_methods_do_not():
    for stateful in (Scaffold(**T5), CompactEstimate(**T5), FedDyn(alpha=3.0, **T5)):
        assert Loop(stateful, clients=10).rounds(400, cohort=3).gap < 1e-9
    floors = [Loop(MimeSVRG(**T5), clients=10).rounds(count, cohort=3).gap for count in (200, 400)]
    assert min(floors) > 1e-2


@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_fednova_weighs_gradients_as_they_enter_the_update(momentum):
    # By hand: a client's update is -lr sum_t c_t g_t, and a is the sum of the c_t.
    for steps in (1, 2, 3, 7):
        buffer, weights = np.zeros(steps), np.zeros(steps)
        for t in range(steps):
            buffer = momentum * buffer + np.eye(steps)[t]
            weights = weights + buffer
        assert FedNova(momentum=momentum, **T5).normaliser(float(steps)) == pytest.approx(weights.sum())


def test_fednova_takes_out_what_different_numbers_of_steps_do():
    small = {"lr": 3e-3, "steps": 5, "batch_size": None}  # a small rate: what is left is not drift
    nova, avg = (Loop(a, steps=[1, 1, 20, 20]).rounds(400).gap for a in (FedNova(**small), atoll.FedAvg(**small)))
    assert nova < 0.05 * avg
    # One round, by hand: the mean of normalised updates, as far as the mean work.
    loop = Loop(FedNova(**small), steps=[1, 2, 3, 4]).round()
    moved = [Loop(atoll.FedAvg(**small), steps=[1, 2, 3, 4]).round([k]).w / (k + 1) for k in range(4)]
    np.testing.assert_allclose(loop.w, 2.5 * np.mean(moved, axis=0), rtol=1e-12)


def test_feddyn_clips_the_direction():
    loop = Loop(FedDyn(lr=0.1, steps=1, batch_size=None, clip=0.5)).round([2])
    # W + mean(w_k - W) - h / alpha with h = -(alpha / N) (w_k - W): a step of norm 0.1 * 0.5, and a fourth of it.
    assert np.linalg.norm(loop.w) == pytest.approx(0.05 * 1.25)
    free, loose = (Loop(FedDyn(lr=0.1, steps=3, batch_size=None, clip=c)).rounds(3).w for c in (None, 1e6))
    np.testing.assert_allclose(free, loose, rtol=1e-12)


@pytest.mark.every(2)
@pytest.mark.parametrize("optimiser", ["adam", "adagrad"])
@pytest.mark.parametrize("kind", [Mime, MimeLite])
def test_a_second_moment_that_begins_at_the_first_gradient_does_not_blow_up(kind, optimiser):
    settings = {**T5, "optimiser": optimiser}
    # |U| <= 1 in the first round where c has its full size, and the step is at most lr * T.
    warm = Loop(kind(**settings)).round()
    assert np.abs(warm.w).max() < 10 * 0.02 * 5
    assert Loop(kind(**settings)).rounds(300).gap < Loop(kind(**settings)).gap
    assert np.abs(Loop(kind(warm=False, **settings)).round().w).max() > 1e4  # c / eps


def test_only_a_first_round_of_mimelite_that_needs_it_has_two_phases():
    lite = Loop(MimeLite(**{**T5, "optimiser": "adam"}))
    assert lite.algorithm.plan(lite.state) == ("anchor", "train")
    assert lite.algorithm.plan(lite.round().state) == ("train",)
    assert MimeLite(**T5).plan(Loop(MimeLite(**T5)).state) == ("train",)


@pytest.mark.parametrize("algorithm", ALL, ids=name)
def test_the_contract_holds(algorithm):
    check_algorithm(replace(algorithm, lr=0.1))


@pytest.mark.parametrize(
    ("algorithm", "floats"),
    [(Scaffold(), 2), (VRLSGD(steps=5), 1), (CompactEstimate(), 2), (FedDyn(), 1), (MimeLite(), 2), (LocalSVRG(), 1)],
    ids=lambda a: type(a).__name__,
)
def test_floats_on_the_way_up_are_those_of_the_table(algorithm, floats):
    reply = dry_reply(algorithm, {"w": np.zeros(7)})
    assert sum(T.size(a.value) for a in reply.values()) == 7 * floats


def test_mime_sends_a_gradient_and_then_an_update_and_fednova_a_number_more():
    params = {"w": np.zeros(7)}
    assert [
        T.size(dry_reply(Mime(), params, phase)[key].value)
        for phase, key in (("anchor", "gradient"), ("train", "update"))
    ] == [7, 7]
    assert sum(T.size(a.value) for a in dry_reply(FedNova(), params).values()) == 8


@pytest.mark.parametrize("algorithm", [a for a in ALL if not isinstance(a, FedDyn)], ids=name)
def test_a_client_without_rows_does_no_harm(algorithm):
    idle = Loop(algorithm)
    idle.data[3] = (np.zeros((0, 3)), np.zeros(0))
    idle.rounds(5)
    assert np.isfinite(idle.w).all()
    assert all(np.isfinite(leaf).all() for leaf in T.leaves(idle.clients[3]) if leaf is not None)
    if not isinstance(algorithm, Scaffold | CompactEstimate):  # in their means over all clients it counts, with nothing
        without = Loop(algorithm, clients=3)
        without.data = idle.data[:3]
        np.testing.assert_allclose(idle.w, without.rounds(5).w, rtol=1e-9)


@dataclass(frozen=True)
class Turning(atoll.Everyone):
    """Everyone, beginning with another client each round."""

    def invite(self, candidates, count, state):
        return np.roll(np.arange(len(candidates.parties)), candidates.round)


@pytest.mark.every(3)
@pytest.mark.parametrize("algorithm", [Scaffold(**T5), FedDyn(**T5), CompactEstimate(**T5), VRLSGD(**T5)], ids=name)
@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_state_belongs_to_the_client_and_not_to_its_place_in_the_cohort(algorithm, engine):
    def run(selection):
        job = atoll.Training(model=Quadratic(3), algorithm=algorithm, selection=selection, rounds=6)
        return atoll.simulate(job, quadratics(4, 3), engine=engine, seed=1).params["w"]

    np.testing.assert_allclose(run(Turning()), run(atoll.Everyone()), rtol=1e-9)


def test_vrl_sgd_wants_everyone_and_says_so():
    job = atoll.Training(model=Quadratic(3), algorithm=VRLSGD(**T5), selection=atoll.Uniform(2), rounds=2)
    with pytest.raises(CompositionError, match="VRLSGD needs every client in every round, and Uniform invites 2 of 4"):
        atoll.simulate(job, quadratics(4, 3), engine="inline")
    with pytest.raises(QuorumError, match="3 of 4 clients replied"):
        Loop(VRLSGD(**T5)).round([0, 1, 2])


def federation(algorithm, clients=4, rounds=3):
    data = quadratics(clients, 3)
    return atoll.Training(model=Quadratic(3), algorithm=algorithm, selection=atoll.Everyone(), rounds=rounds), data


@pytest.mark.parametrize("algorithm", [Scaffold(option=1, **T5), VRLSGD(**T5), CompactEstimate(**T5)], ids=name)
def test_state_survives_a_crash(algorithm, tmp_path):
    job, data = federation(algorithm)

    learner = job.learner(data)
    train = job.program(data, learner)

    async def program(fed):
        return (await train(fed)).params

    def world(folder, resume):
        return World(
            data, ENGINES["inline"](1), folder=folder, resume=resume, registry={learner.train.name: learner.train}
        )

    life = killed_and_resumed(world, program, tmp_path, points=5)
    assert np.abs(life.result["w"]).max() > 0


def test_a_run_whose_client_has_vanished_is_not_resumed(tmp_path):
    job, data = federation(Scaffold(**T5))
    atoll.simulate(job, data, engine="inline", folder=tmp_path / "run")
    fewer = quadratics(3, 3)
    with pytest.raises(CheckpointError, match="private state of party number 3, but the federation has 3 parties"):
        atoll.simulate(job.replace(rounds=5), fewer, engine="inline", folder=tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Scaffold(option=3), "option=3"),
        (lambda: Scaffold(lr=0.0), r"lr=0\.0"),
        (lambda: VRLSGD(), "steps=None"),
        (lambda: VRLSGD(steps=4, stragglers=Stragglers(0.5)), "same for all clients"),
        (lambda: Mime(optimiser="adma"), "Did you mean 'adam'"),
        (lambda: Mime(beta1=1.0), r"beta1=1\.0"),
        (lambda: MimeLite(eps=0.0), r"eps=0\.0"),
        (lambda: FedDyn(alpha=0.0), r"alpha=0\.0"),
        (lambda: FedDyn(clip=-1.0), r"clip=-1\.0"),
        (lambda: FedNova(momentum=1.0), r"momentum=1\.0"),
    ],
)
def test_bad_settings_are_refused(make, match):
    with pytest.raises(ConfigError, match=match):
        make()


def test_fednova_without_steps_is_finite():
    reply, _ = FedNova(momentum=0.5).finish(
        {"params": {"w": np.ones(2)}}, {"params": {"w": np.ones(2)}}, None, LocalWork(0.0, 0.0)
    )
    assert np.isfinite(reply["normalised"].value["w"]).all()
