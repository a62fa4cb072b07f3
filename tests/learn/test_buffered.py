"""FedBuff (Nguyen et al. 2022): steps of a full buffer, staleness weights, groups for secure reducers."""

from __future__ import annotations

import math

import numpy as np
import pytest

import atoll
from atoll.aggregation import EqualWeights, KeepGlobal
from atoll.algorithms import FedAvg, FedAvgM, Scaffold, Upcycled
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.federation.reducer import TreeReducer
from atoll.core.requests.cohort import Community
from atoll.core.requests.results import Outcomes
from atoll.core.world import World
from atoll.engines import ENGINES
from atoll.learn import Training
from atoll.pacing import ConstantStaleness, FedAsync, FedBuff, PolynomialStaleness, Synchronous
from atoll.selection import Everyone, Uniform
from atoll.stages import QSGD
from atoll.testing import Timetable, live
from tests.support.async_toys import CLIENTS, DATA, FULL, SECONDS, ForWork, Hidden, Slow, job, local, survives, train
from tests.support.learn_toys import Fixed, flat, islands


def reference(rounds, *, buffer, weight, lr=1.0, seconds=SECONDS):
    """The loop of the paper, idle clients asked when the server steps: the model, times and mean staleness."""
    world, w, rows, idle = Slow(seconds), np.zeros(6), [], list(range(CLIENTS))
    for version in range(rounds):
        world.ask(idle, version, w)
        replies = [world.answer() for _ in range(buffer)]
        updates = [weight(version - v) * (local(k, base) - base) for k, v, base in replies]
        w = w + lr * sum(updates) / buffer
        idle = [k for k, _, _ in replies]
        rows.append((world.clock, float(np.mean([version - v for _, v, _ in replies]))))
    return w, rows


@pytest.mark.parametrize("buffer", [1, 3, 5])
@pytest.mark.parametrize("rule", [ConstantStaleness(), PolynomialStaleness(a=0.5)], ids=lambda r: type(r).__name__)
def test_it_is_the_loop_of_the_paper(buffer, rule):
    found = train(FedBuff(buffer=buffer, staleness=rule, server_lr=0.8))
    w, rows = reference(12, buffer=buffer, weight=rule.weight, lr=0.8)
    np.testing.assert_allclose(flat(found.params), w, rtol=1e-12)
    assert [(row["t_end"], row["staleness"]) for row in found.metrics] == rows


@pytest.mark.parametrize(
    "algorithm", [FedAvg(**FULL), FedAvgM(**FULL), Scaffold(**FULL)], ids=lambda a: type(a).__name__
)
def test_a_full_buffer_of_equals_is_synchronous(algorithm):
    devices = [3.0] * CLIENTS
    buffered = train(FedBuff(buffer=CLIENTS), algorithm, seconds=devices)
    rounds = train(Synchronous(), algorithm, seconds=devices)
    np.testing.assert_allclose(flat(buffered.params), flat(rounds.params), rtol=1e-12)
    for name in ("t_end", "bytes_up", "bytes_down", "replied"):
        assert buffered.metrics.column(name) == rounds.metrics.column(name)
    assert buffered.metrics.column("version_variance") == [0.0] * 12


def test_the_miniature_on_the_waist_gives_the_same():
    """tests/waist/test_fedbuff.py: targets, and half of the way to them at every visit, weighed by 1/sqrt(1 + staleness)."""
    from tests.waist import test_fedbuff as miniature

    rng = np.random.default_rng(1)
    targets = [rng.normal(size=2) for _ in range(6)]
    speeds = {f"client-{i}": 1.0 + 0.37 * i for i in range(6)}  # no ties: the two break them differently
    world = World(Community(targets), ENGINES["inline"](1), cost=Timetable(speeds))
    expected = live(world, miniature.fedbuff(4, 9)).result

    def toward(params, data, rng):
        return {"w": params["w"] + miniature.LR * (np.asarray(data.y)[:2] - params["w"])}

    from atoll.data import Dataset, Islands
    from atoll.models import CustomLearner

    parts = [Dataset({"x": np.zeros((2, 1)), "y": t}, task="regression") for t in targets]
    made = Training(
        model=CustomLearner(init=lambda rng: {"w": np.zeros(2)}, train=toward),
        algorithm=FedAvg(),
        selection=Everyone(),
        pacing=FedBuff(buffer=4),
        rounds=9,
    )
    found = atoll.simulate(made, Islands.from_datasets(parts), engine="inline", devices=Timetable(speeds))
    np.testing.assert_allclose(flat(found.params), expected["w"], rtol=1e-12)
    assert found.metrics.column("staleness") == [float(np.mean(stale)) for stale in expected["stale"]]


def test_weights_are_the_algorithms_and_equal_ones_give_the_papers_step():
    sizes = [2, 4, 6]

    def grow(params, data, rng):
        return {"w": params["w"] + len(data)}

    from atoll.models import CustomLearner

    def one_step(**more):
        model = CustomLearner(init=lambda rng: {"w": np.zeros(1)}, train=grow)
        made = Training(
            model=model, algorithm=FedAvg(), selection=Everyone(), pacing=FedBuff(buffer=3), rounds=1, **more
        )
        return float(flat(atoll.simulate(made, islands(sizes), engine="inline").params)[0])

    assert one_step() == pytest.approx((4 + 16 + 36) / 12)
    assert one_step(aggregation=EqualWeights()) == pytest.approx(4.0)


def test_refilling_at_arrivals_keeps_more_at_work():
    """Two at work of five, a buffer of two: at every arrival somebody idle follows, so that the buffer fills sooner."""
    slow, fast = (
        train(
            FedBuff(buffer=2, concurrency=2, refill=refill),
            seconds=[1.0, 4.0, 1.0, 4.0, 1.0],
            rounds=8,
            selection=Uniform(2),
        )
        for refill in ("step", "arrival")
    )
    assert fast.metrics[-1]["t_end"] < slow.metrics[-1]["t_end"]
    assert max(fast.metrics.column("selected")) <= 2 + 1


def test_updates_of_a_buffer_of_one_without_weights_are_fedasync_that_forgets_nothing():
    """Buffer 1 adds the whole stale update; FedAsync with alpha 1 replaces the model: equal only for the first reply."""
    one, other = train(FedBuff(buffer=1), rounds=1), train(FedAsync(alpha=1.0), rounds=1)
    np.testing.assert_allclose(flat(one.params), flat(other.params), rtol=1e-13)
    one, other = train(FedBuff(buffer=1), rounds=2), train(FedAsync(alpha=1.0), rounds=2)
    assert np.abs(flat(one.params) - flat(other.params)).max() > 1e-3


# ---------------------------------------------------------------------- a secure reducer


def test_a_secure_reducer_sees_sums_of_groups_and_the_result_is_the_same():
    pacing = FedBuff(buffer=2, group=2)
    secure = train(pacing, reducer=Hidden(), rounds=6, seconds=ForWork([1.0, 1.0, 2.0, 2.0, 3.0]))
    plain = train(pacing, rounds=6, seconds=ForWork([1.0, 1.0, 2.0, 2.0, 3.0]))
    np.testing.assert_allclose(flat(secure.params), flat(plain.params), atol=1e-9)
    for name in ("replied", "t_end", "staleness", "late"):
        assert secure.metrics.column(name) == plain.metrics.column(name)
    assert secure.metrics[0]["bytes_up"] > plain.metrics[0]["bytes_up"]
    slow = train(pacing, reducer=Hidden(), rounds=6, seconds=[1.0, 1.0, 2.0, 2.0, 3.0])
    assert slow.metrics[-1]["t_end"] > secure.metrics[-1]["t_end"], (
        "the protocol speaks to the clients again, which takes time"
    )


def test_a_reply_is_not_given_up_before_a_crash_is_noticed():
    """All but the first client crash in their first request, which links notice after 50 s: until then its reply may come to be one of two."""
    asked = []

    class Noticed(Fixed):
        def plan(self, parties, plan):
            asked.extend((plan.now, k) for k in parties.positions.tolist())
            done = (parties.positions == 0) | (plan.turn > 1)
            seconds = np.where(done, 1.0, 50.0)
            return Outcomes(seconds, done, np.ones(len(parties)))

    found = train(FedBuff(buffer=2, group=2), rounds=1, seconds=Noticed(SECONDS))
    assert [k for now, k in asked if now < 50.0] == [0, 1, 2, 3, 4]
    assert found.metrics[0]["late"] == 1
    assert found.metrics[0]["t_end"] == 51.0


def test_what_can_never_be_a_group_is_dropped():
    """The fifth client is alone in its request once the others have gone: under a group of two nobody would hide it."""
    found = train(FedBuff(buffer=2, group=2), rounds=8, seconds=[1.0, 1.0, 2.0, 2.0, 3.0])
    assert sum(found.metrics.column("late")) > 0
    assert all(n >= 2 for n in found.metrics.column("replied"))


def test_a_tree_of_sums_is_applied_too():
    plain, tree = (
        train(FedBuff(buffer=3), rounds=5, seconds=ForWork(SECONDS), **more)
        for more in ({}, {"reducer": TreeReducer(2)})
    )
    np.testing.assert_allclose(flat(tree.params), flat(plain.params), rtol=1e-9)


# ---------------------------------------------------------------------- with the rest of a training


@pytest.mark.quick("Upcycled")
@pytest.mark.parametrize(
    "algorithm", [Scaffold(**FULL), Upcycled(base=FedAvg(**FULL), coefficient=0.3)], ids=lambda a: type(a).__name__
)
def test_a_killed_run_goes_on_where_it_was(tmp_path, algorithm):
    survives(job(FedBuff(buffer=2), algorithm, rounds=6, uplink=(QSGD(levels=16),)), tmp_path)


def test_a_killed_run_with_a_protocol_goes_on_where_it_was(tmp_path):
    survives(
        job(FedBuff(buffer=2, group=2), rounds=4, reducer=Hidden()),
        tmp_path,
        seconds=[1.0, 1.0, 2.0, 2.0, 3.0],
        points=12,
        secret_seed=5,
    )


@pytest.mark.parametrize("engine", ["batched", "processes"])
def test_engines_agree(engine):
    data = islands([5, 6, 7, 8, 9])
    made = Training(
        model=atoll.models.logistic(4, 3),
        algorithm=FedAvg(lr=0.1, batch_size=4),
        selection=Everyone(),
        pacing=FedBuff(buffer=3),
        uplink=(QSGD(levels=4),),
        rounds=6,
    )
    one, other = (atoll.simulate(made, data, engine=e, devices=Fixed(SECONDS), workers=2) for e in ("inline", engine))
    np.testing.assert_allclose(flat(other.params), flat(one.params), rtol=1e-5)
    for name in ("t_end", "staleness", "bytes_up", "bytes_down"):
        assert other.metrics.column(name) == one.metrics.column(name)


def test_crashes_leave_the_buffer_to_the_others():
    found = train(FedBuff(buffer=3), seconds=Fixed([1.0, 2.0, math.inf, 3.0, 4.0], notice=2.5), rounds=6)
    assert found.metrics.column("replied") == [3] * 6
    assert found.metrics[0]["crashed"] == 1


def test_full_aggregation_scales_the_step():
    plain, scaled = (train(FedBuff(buffer=5), rounds=1, **more) for more in ({}, {"aggregation": KeepGlobal()}))
    np.testing.assert_allclose(flat(scaled.params), flat(plain.params), rtol=1e-12)
    plain, scaled = (train(FedBuff(buffer=2), rounds=1, **more) for more in ({}, {"aggregation": KeepGlobal()}))
    np.testing.assert_allclose(flat(scaled.params), 0.4 * flat(plain.params), rtol=1e-12)


@pytest.mark.parametrize(
    ("pacing", "more", "text"),
    [
        (FedBuff(buffer=9), {}, "buffer=9 with group=1, but only 5 clients work at once"),
        (FedBuff(buffer=3, concurrency=2), {}, "buffer=3 with group=1, but only 2 clients work at once"),
        (
            FedBuff(buffer=3),
            {"reducer": Hidden()},
            "group=1: it would sum single replies, and so reveal them, and Hidden reveals sums only",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(pacing, more, text):
    with pytest.raises(CompositionError, match=text):
        job(pacing, **more).learner(DATA)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"buffer": 0}, "buffer=0"),
        ({"buffer": 2.5}, r"buffer=2\.5"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"refill": "now"}, "'now'"),
        ({"server_lr": 0.0}, "server_lr=0.0"),
    ],
)
def test_bad_settings(settings, text):
    with pytest.raises(ConfigError, match=text):
        FedBuff(**settings)
