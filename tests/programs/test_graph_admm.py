"""ADMM without a server and without a barrier: DADMM, DLM, AsyncADMM against the optimum and their invariants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings as laws

import atoll
from atoll.core.errors import AtollError, CompositionError, ConfigError, QuorumError
from atoll.core.requests.task import task
from atoll.core.world import World
from atoll.data import Dataset, Islands
from atoll.engines import Inline
from atoll.learn.topology.graphs import Complete, EdgeList, Ring, TimeVarying
from atoll.models.quadratic import minimiser
from atoll.programs.consensus import DADMM, DLM, AsyncADMM
from atoll.testing import Timetable, killed_and_resumed
from tests.support.learn_toys import Fixed


def problem():
    """Eight least-squares problems that disagree: 30 rows, 5 columns, mean of squares."""
    draw, parts = np.random.default_rng(0), {}
    for k in range(8):
        x = draw.normal(size=(30, 5))
        parts[f"client-{k}"] = Dataset({"x": x.T @ x / 30, "y": x.T @ x @ draw.normal(size=5) / 30}, task="regression")
    return Islands.from_datasets(parts)


DATA = problem()
BEST = minimiser(DATA)[0]


@task
def peek(island, message):
    """For tests alone: a node's multiplier."""
    return {"dual": island.state["dual"]}


def run(job, engine="inline", **more):
    async def program(fed):
        found = await job.program(fed)
        duals = [reply["dual"] for reply in await fed.ask_all(fed.parties, peek)]
        return found, np.array(duals), fed.records

    return atoll.simulate(program, DATA, engine=engine, seed=0, **more)


def off(job):
    return np.abs(run(job)[0].models - BEST).max()


@pytest.mark.slow
def test_dadmm_converges_linearly_on_a_ring():
    # Specification of the survey, section 10: ring of 8, c = 0.2: error 1.3e-4 / 1.6e-15 after 50 / 200 rounds, on a problem that is not given. On ours, which is
    # another one, 8e-3 / 2e-8: it is the linear rate that is held here, and the paper's loop below.
    errors = [off(DADMM(dim=5, c=0.2, rounds=rounds)) for rounds in (50, 100, 150, 200)]
    assert errors[0] < 2e-2
    assert errors[3] < 5e-8
    rates = np.array(errors[1:]) / np.array(errors[:-1])
    assert rates.max() < 2 * rates.min() < 0.1  # equal times, equal factors
    assert run(DADMM(dim=5, rounds=200))[0].spread < 1e-7


@pytest.mark.slow
def test_dlm_gets_there_with_single_gradients():
    # Specification of the survey, section 10: 5e-12 after 400 rounds.
    assert off(DLM(dim=5, c=0.2, rho=1.5, rounds=400)) < 5e-12


@pytest.mark.parametrize("job", [DADMM(dim=5, rounds=7), DLM(dim=5, rounds=7, graph=Complete())], ids=["DADMM", "DLM"])
def test_multipliers_add_up_to_nothing_at_any_time(job):
    _, duals, _ = run(job)
    assert np.abs(duals).max() > 0.1
    np.testing.assert_allclose(duals.sum(axis=0), 0.0, atol=1e-12)


def test_at_the_end_multipliers_are_negative_gradients():
    _, duals, _ = run(DADMM(dim=5, rounds=300))
    wanted = [np.asarray(DATA.shard(k).y) - np.asarray(DATA.shard(k).x) @ BEST for k in range(8)]
    np.testing.assert_allclose(duals, wanted, atol=1e-7)


@pytest.mark.network
def test_it_is_the_loop_of_the_paper():
    H, b = ([np.asarray(getattr(DATA.shard(k), f)) for k in range(8)] for f in "xy")
    x, a, c = np.zeros((8, 5)), np.zeros((8, 5)), 0.2
    around = [((k - 1) % 8, (k + 1) % 8) for k in range(8)]
    for _ in range(6):
        x = np.array([
            np.linalg.solve(H[k] + 4 * c * np.eye(5), b[k] - a[k] + 2 * c * sum((x[k] + x[j]) / 2 for j in around[k])) for k in range(8)
        ])  # fmt: skip
        a = a + c * np.array([sum(x[k] - x[j] for j in around[k]) for k in range(8)])
    found, duals, _ = run(DADMM(dim=5, c=c, rounds=6))
    np.testing.assert_allclose(found.models, x, atol=1e-11)
    np.testing.assert_allclose(duals, a, atol=1e-11)
    np.testing.assert_allclose(run(DADMM(dim=5, rounds=6), "processes")[0].models, x, atol=1e-11)


def test_graphs_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="no path leads from 'client-0' to 'client-4'"):
        run(DADMM(dim=5, graph=EdgeList(((0, 1), (1, 2), (2, 3), (4, 5), (5, 6), (6, 7)))))
    with pytest.raises(ConfigError, match="changes over time"):
        run(DADMM(dim=5, graph=TimeVarying(Ring())))


# Specification of the survey, section 10: z error after 600 updates for S_min = 8/4/2/1, tau = 10: 3e-16 / 1e-9 / 4e-7 / 4e-6, on a problem and delays not given.
@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("least", "most"), [pytest.param(8, 3e-15, marks=pytest.mark.slow), (4, 1e-9), (2, 4e-7), (1, 4e-6)]
)
def test_async_admm_reaches_the_optimum_with_any_barrier(least, most):
    job = AsyncADMM(dim=5, min_arrivals=least, max_age=10, updates=600)
    z, _, records = run(job, devices=Fixed([1.0, 1.1, 1.3, 1.7, 2.0, 2.9, 5.0, 8.3]))
    assert np.abs(z - BEST).max() < most
    assert all(row["reports"] >= least and row["oldest"] < 10 for row in records)


def test_a_smaller_barrier_saves_time():
    slow = Fixed([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 10.0])
    ends = [
        run(AsyncADMM(dim=5, rho=2.0, min_arrivals=least, max_age=50, updates=40), devices=slow)[2][-1]["time"]
        for least in (8, 4)
    ]
    assert ends[0] == pytest.approx(400.0)
    assert ends[1] <= 50.0


def test_nobody_gets_too_old():
    slow = Fixed([1.0] * 7 + [100.0])
    _, _, records = run(AsyncADMM(dim=5, min_arrivals=1, max_age=3, updates=12), devices=slow)
    assert max(row["oldest"] for row in records) == 2
    assert records[-1]["time"] >= 300.0  # every third update waits for the slow one


def test_with_everyone_it_is_synchronous_consensus_admm():
    z, _, _ = run(AsyncADMM(dim=5, rho=2.0, min_arrivals=8, updates=5))
    H, b = ([np.asarray(getattr(DATA.shard(k), f)) for k in range(8)] for f in "xy")
    at, dual = np.zeros(5), np.zeros((8, 5))
    for _ in range(5):
        x = np.array([np.linalg.solve(H[k] + 2 * np.eye(5), b[k] - dual[k] + 2 * at) for k in range(8)])
        dual = dual + 2 * (x - at)
        at = (x + dual / 2).mean(axis=0)
    np.testing.assert_allclose(z, at, atol=1e-11)


def test_workers_that_never_answer_and_bad_settings_are_refused():
    with pytest.raises(QuorumError, match="nothing is under way"):
        run(AsyncADMM(dim=5, min_arrivals=8, updates=2), devices=Fixed([1.0] * 7 + [np.inf]))
    with pytest.raises(CompositionError, match="min_arrivals=9 of 8 workers"):
        run(AsyncADMM(dim=5, min_arrivals=9))
    with pytest.raises(AtollError, match=r"x of shape \(5, 5\)"):
        run(AsyncADMM(dim=4, updates=1))
    for kind, settings, match in (
        (DADMM, {"c": 0.0}, "c=0.0"),
        (DLM, {"rho": -1.0}, "rho=-1.0"),
        (DADMM, {"rounds": 0}, "rounds=0"),
        (AsyncADMM, {"rho": 0.0}, "rho=0.0"),
        (AsyncADMM, {"max_age": 0}, "max_age=0"),
        (AsyncADMM, {"loss": "hinge"}, "loss='hinge'"),
    ):
        with pytest.raises(ConfigError, match=match):
            kind(dim=5, **settings)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "job",
    [DADMM(dim=5, rounds=6), DLM(dim=5, rounds=5), AsyncADMM(dim=5, min_arrivals=2, max_age=3, updates=7)],
    ids=lambda job: type(job).__name__,
)
def test_killed_and_resumed_it_gives_the_same(job, tmp_path):
    """At every step of the engine and of the disk; what is under way goes on."""
    speeds = {f"client-{k}": 1.0 + k % 3 for k in range(8)}

    async def program(fed):
        found = await job.program(fed)
        return found if isinstance(found, np.ndarray) else found.models

    def make(folder, resume):
        return World(DATA, Inline(), cost=Timetable(speeds), folder=folder, resume=resume)

    whole = killed_and_resumed(make, program, tmp_path, points=laws.default.max_examples // 5)
    assert np.isfinite(whole.result).all()
    assert any(step == "before commit" for step in whole.steps)
