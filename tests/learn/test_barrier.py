"""The partial barrier with bounded delay (Zhang, Kwok 2014), and the program that it shares its pace with."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.algorithms import CEADMM, FedADMM, FedAvg, FedSGD, FedSSO, Scaffold, SufficientStatistics, Upcycled
from atoll.core.errors import CompositionError, ConfigError, QuorumError
from atoll.learn import Evaluation
from atoll.models.quadratic import minimiser
from atoll.pacing import PartialBarrier, Synchronous
from atoll.programs import AsyncADMM
from atoll.selection import Uniform
from atoll.stages import QSGD
from tests.support.async_toys import CLIENTS, DATA, DIM, FULL, SECONDS, Slow, job, local, survives, train
from tests.support.learn_toys import Fixed, flat

EXACT = CEADMM(solver="exact", newton=1, iterations=DIM, rho=1.5)


def reference(rounds, *, replies, delay):
    """One client after another: the server goes on with `replies` answers unless somebody would be too old."""
    world, w, rows, idle = Slow(), np.zeros(DIM), [], list(range(CLIENTS))
    base = dict.fromkeys(range(CLIENTS), 0)
    for version in range(rounds):
        world.ask(idle, version, w)
        base.update(dict.fromkeys(idle, version))
        taken = []
        while True:
            while world.queue and world.queue[0][0] <= world.clock:
                taken.append(world.answer())
            away = [version - base[k] for _, _, k, _, _ in world.queue]
            if len(taken) >= replies and all(age < delay - 1 for age in away):
                break
            taken.append(world.answer())
        w = w + np.mean([local(k, b) - b for k, _, b in taken], axis=0)
        idle = [k for k, _, _ in taken]
        rows.append((world.clock, len(taken), max(version - v for _, v, _ in taken)))
    return w, rows


@pytest.mark.parametrize(("replies", "delay"), [(1, 10), (1, 3), (2, 4), (3, 2), (5, 9)])
def test_it_is_the_loop(replies, delay):
    found = train(PartialBarrier(replies=replies, max_delay=delay))
    w, rows = reference(12, replies=replies, delay=delay)
    np.testing.assert_allclose(flat(found.params), w, rtol=1e-12)
    assert [(row["t_end"], row["replied"], row["most_stale"]) for row in found.metrics] == rows


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(0.1, 9.0), min_size=CLIENTS, max_size=CLIENTS), st.integers(1, CLIENTS), st.integers(1, 5))
def test_no_reply_is_older_than_the_bound(seconds, replies, delay):
    rows = train(PartialBarrier(replies=replies, max_delay=delay), seconds=seconds, rounds=10).metrics
    assert max(rows.column("most_stale")) <= delay - 1
    assert min(rows.column("replied")) >= replies


@pytest.mark.parametrize(
    "pacing", [PartialBarrier(replies=1, max_delay=1), PartialBarrier(replies=CLIENTS, max_delay=8)]
)
@pytest.mark.parametrize("algorithm", [FedAvg(**FULL), EXACT, Scaffold(**FULL)], ids=lambda a: type(a).__name__)
def test_with_no_delay_or_everyones_reply_it_is_synchronous(pacing, algorithm):
    one, other = (train(p, algorithm, rounds=6) for p in (pacing, Synchronous()))
    np.testing.assert_allclose(flat(one.params), flat(other.params), rtol=1e-12)
    assert one.metrics.column("t_end") == other.metrics.column("t_end")


@pytest.mark.parametrize(("replies", "delay"), [(1, 4), (2, 3), (3, 10)])
@pytest.mark.parametrize("updates", [1, 7, 25])
def test_exact_consensus_admm_is_the_program_asyncadmm(replies, delay, updates):
    """CEADMM's server holds mean(x + l / rho) of everybody's newest, as AsyncADMM's does; both begin at zero."""
    program = AsyncADMM(dim=DIM, rho=1.5, min_arrivals=replies, max_age=delay, updates=updates)
    z = atoll.simulate(program.program, DATA, engine="inline", devices=Fixed(SECONDS))
    found = train(PartialBarrier(replies=replies, max_delay=delay), EXACT, rounds=updates)
    np.testing.assert_allclose(flat(found.params), z, rtol=1e-8, atol=1e-10)


@pytest.mark.quick("FedADMM")
@pytest.mark.parametrize("algorithm", [EXACT, FedADMM(lr=0.02, rho=2.0, steps=20)], ids=lambda a: type(a).__name__)
def test_consensus_admm_reaches_the_optimum_however_stale(algorithm):
    """The mean of the clients' quadratics is minimised: the fold adds changes up, so nothing stale is left behind."""
    best, _ = minimiser(DATA)
    found = train(PartialBarrier(replies=1, max_delay=6), algorithm, rounds=250, evaluation=Evaluation(every=250))
    np.testing.assert_allclose(flat(found.params), best, atol=1e-5)
    assert max(found.metrics.column("most_stale")) > 0


def test_stale_gradients_with_a_bound_converge_too():
    best, _ = minimiser(DATA)
    algorithm = Scaffold(lr=0.02, steps=3, batch_size=None)
    found = train(PartialBarrier(replies=2, max_delay=5), algorithm, rounds=200, evaluation=Evaluation(every=200))
    np.testing.assert_allclose(flat(found.params), best, atol=1e-4)
    assert np.isfinite(flat(train(PartialBarrier(), FedSGD(lr=0.02, batch_size=None)).params)).all()


def test_a_crash_holds_the_server_up_until_it_is_noticed_when_it_would_be_too_old():
    slow = Fixed([1.0, 1.0, 1.0, 1.0, math.inf], notice=50.0)
    rows = train(PartialBarrier(replies=4, max_delay=3), seconds=slow, rounds=3).metrics
    assert [row["t_end"] for row in rows] == [1.0, 2.0, 50.0], "two updates without it, then it would be 3 old"
    assert rows[0]["crashed"] == 1


def test_fewer_clients_than_replies_end_the_training():
    with pytest.raises(QuorumError, match="no client works, and no client can be invited"):
        train(PartialBarrier(replies=5), seconds=Fixed([1.0, 1.0, 1.0, 1.0, math.inf], notice=math.inf))


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_was(tmp_path):
    survives(
        job(PartialBarrier(replies=2, max_delay=3), EXACT, rounds=5),
        tmp_path / "a",
        points=settings.default.max_examples // 5,
    )
    survives(
        job(
            PartialBarrier(replies=1, max_delay=4),
            Upcycled(base=FedAvg(**FULL), coefficient=0.2),
            rounds=6,
            uplink=(QSGD(levels=8),),
        ),
        tmp_path / "b",
        points=settings.default.max_examples // 5,
    )


@pytest.mark.parametrize("engine", ["batched", "processes"])
def test_engines_agree(engine):
    one, other = (train(PartialBarrier(replies=2, max_delay=3), EXACT, engine=e, rounds=5) for e in ("inline", engine))
    np.testing.assert_allclose(flat(other.params), flat(one.params), rtol=1e-10)
    assert one.metrics.column("bytes_up") == other.metrics.column("bytes_up")


@pytest.mark.parametrize(
    ("pacing", "more", "text"),
    [
        (PartialBarrier(replies=9), {}, "replies=9, but only 5 clients work at once"),
        (PartialBarrier(replies=3), {"selection": Uniform(2)}, "replies=3, but only 2 clients work at once"),
        (PartialBarrier(), {"algorithm": SufficientStatistics()}, "discards its previous state"),
        (PartialBarrier(), {"algorithm": FedSSO(batch_size=None)}, "pairs models and gradients of one round"),
    ],
)
def test_what_makes_no_sense_is_refused(pacing, more, text):
    with pytest.raises(CompositionError, match=text):
        job(pacing, **more).learner(DATA)


@pytest.mark.parametrize(("setting", "text"), [({"replies": 0}, "replies=0"), ({"max_delay": 0}, "max_delay=0")])
def test_bad_settings(setting, text):
    with pytest.raises(ConfigError, match=text):
        PartialBarrier(**setting)
