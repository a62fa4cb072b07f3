"""SAFA: lag-tolerant distribution, selection after training, and the cache with its bypass."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.aggregation import KeepLocal
from atoll.algorithms import FedAvg, Scaffold, Upcycled
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.federation.reducer import Plain
from atoll.core.requests.results import Outcomes
from atoll.core.time.clock import Clock
from atoll.core.world import World
from atoll.engines import ENGINES
from atoll.learn import Training
from atoll.learn.pacing.dispatch import begin_cache, replace_entries, resum_rows
from atoll.learn.pacing.safa import AdaptiveLag, deprecation_rate
from atoll.learn.pacing.staleness import ConstantStaleness, PolynomialStaleness
from atoll.models.idle import IdleIslands, IdleModel
from atoll.pacing import SAFA
from atoll.selection import CFCFM, Uniform
from atoll.simulation import run_in
from atoll.stages import QSGD
from atoll_papers.safa.reference import Crashes, draw_crashes, safa
from tests.support.learn_toys import flat, islands


class Traced:
    """Client k answers after ``seconds[k]``, or crashes as a trace says by turn."""

    def __init__(self, seconds, crashes):
        self.seconds, self.crashes = np.asarray(seconds, dtype=float), crashes

    def plan(self, parties, plan):
        at = parties.positions
        crashed, point = self.crashes.crashed[plan.turn - 1, at], self.crashes.point[plan.turn - 1, at]
        return Outcomes(self.seconds[at] * point, ~crashed, point)

    def transfer(self, source, target, nbytes):
        return 0.0


@dataclasses.dataclass(frozen=True)
class Dated(Uniform):
    """Remembers how many rounds back the models were that replies are based on."""

    log: list = dataclasses.field(default_factory=list)
    reports = {"loss": None}  # noqa: RUF012 - a rule's reports are a property

    def accept(self, seen, state):
        self.log.extend((seen.round - np.asarray(seen.versions)).tolist())
        return state


@dataclasses.dataclass(frozen=True)
class Watched(CFCFM):
    """Remembers who was picked."""

    log: list = dataclasses.field(default_factory=list)

    def accept(self, seen, state):
        self.log.append(np.sort(seen.replied.positions).tolist())
        return super().accept(seen, state)


def run(crashes, seconds, fraction, *, rounds=None, selection=None, **options):
    rule = selection or Watched(fraction)
    job = Training(
        model=IdleModel(),
        algorithm=FedAvg(),
        selection=rule,
        pacing=SAFA(**options),
        rounds=rounds or len(crashes.crashed),
        evaluation=atoll.Evaluation(server=False),
    )
    sizes = np.arange(1, len(seconds) + 1)
    result = atoll.simulate(job, IdleIslands(sizes), devices=Traced(seconds, crashes), engine="batched", workers=1)
    return result.metrics, rule.log if isinstance(rule, Watched) else []


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    crash=st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.95]),
    fraction=st.sampled_from([0.1, 0.3, 0.5, 0.7, 1.0]),
    lag=st.integers(0, 5),
    literal=st.booleans(),
    limit=st.sampled_from([3.5, 9.0, 100.0]),
)
def test_as_published_it_is_the_slow_reference(seed, crash, fraction, lag, literal, limit):
    rng = np.random.default_rng(seed)
    crashes, seconds = draw_crashes(25, 12, crash, rng), rng.permutation(12) + 1.0
    lag = max(lag, 1) if literal else lag
    slow = safa(crashes, seconds, fraction, lag, beyond=not literal, pickable=seconds <= limit)
    rows, picked = run(crashes, seconds, fraction, lag_tolerance=lag, literal=literal, published=True, deadline=limit)
    assert picked == [np.flatnonzero(mask).tolist() for mask in slow.picked]
    log = slow.log()
    assert rows.column("synchronised") == slow.sent.sum(axis=1).tolist()
    assert rows.column("deprecated") == slow.deprecated.sum(axis=1).tolist()
    assert rows.column("undrafted") == slow.undrafted.sum(axis=1).tolist()
    assert (np.diff([0.0, *rows.column("t_end")]) <= limit + 1e-9).all()
    assert rows.column("crashed") == slow.crashed.sum(axis=1).tolist()
    np.testing.assert_allclose(rows.column("version_variance"), log.variance)
    np.testing.assert_allclose(rows.column("slowest_picked"), log.taken)


# ---------------------------------------------------------------------- a real model


SIZES = [5, 6, 7, 8, 9]
NONE = Crashes(np.zeros((40, 5), bool), np.ones((40, 5)))


def training(pacing, *, rounds=8, selection=None, **parts):
    parts = {"algorithm": FedAvg(lr=0.1, epochs=2, batch_size=3), **parts}
    return Training(
        model=atoll.models.linear(4, 3),
        selection=selection or CFCFM(0.4),
        pacing=pacing,
        rounds=rounds,
        **parts,
    )


def crashing(seed, crash=0.4):
    return draw_crashes(40, 5, crash, np.random.default_rng(seed))


def simulate(job, crashes, seconds=(1.0, 2.0, 3.0, 4.0, 5.0), engine="inline", **more):
    return atoll.simulate(job, islands(SIZES), engine=engine, devices=Traced(seconds, crashes), **more)


def test_with_everyone_and_no_crash_it_is_keep_local_fedavg():
    """Law 15: every client submits in every round."""
    job = training(SAFA(lag_tolerance=5), selection=CFCFM(1.0))
    sync = training(atoll.pacing.Synchronous(), selection=atoll.selection.Everyone(), aggregation=KeepLocal())
    one, other = simulate(job, NONE), simulate(sync, NONE)
    np.testing.assert_allclose(flat(one.params), flat(other.params), rtol=1e-6)
    assert one.metrics.column("synchronised") == [5] * 8
    assert one.metrics.column("version_variance") == [0.0] * 8


def by_hand(crashes, seconds, fraction, lag, rounds, job):
    """The thesis's Algorithm 2 to the letter, client by client, on models as vectors."""
    from atoll.core.algebra.rng import Rng
    from atoll.learn.local.update import local_update

    data = islands(SIZES)
    learner = job.learner(data)
    slow = safa(Crashes(crashes.crashed[:rounds], crashes.point[:rounds]), np.asarray(seconds), fraction, lag)
    w = learner.init(Rng.of(0).child("main", "program", "init"))
    shares = np.array(SIZES) / sum(SIZES)
    base, cache = [w] * 5, [w] * 5
    history = []
    for t in range(rounds):
        fresh = {}
        for k in range(5):
            if slow.sent[t, k]:
                base[k] = w
            if slow.picked[t, k] or slow.undrafted[t, k]:
                version = int(slow.versions[t, k])
                label = f"@{t + 1}/train" if version == t else f"@{t + 1}/train/{version}/0"
                key = Rng.of(0).child("main", learner.train.name, label).child(f"client-{k}").key
                shard = data.shard(k)
                x, y = shard["x"], shard["y"]
                reply, _, _ = local_update(
                    job.algorithm, learner.loss_gradient, {"params": base[k], "lr": 0.1}, None, x, y, key
                )
                fresh[k] = {name: base[k][name] + reply["update"].value[name] for name in w}
        for k in range(5):
            cache[k] = fresh[k] if slow.picked[t, k] else w if slow.deprecated[t, k] else cache[k]
        w = {name: sum(shares[k] * cache[k][name] for k in range(5)) for name in w}
        for k in range(5):
            cache[k] = fresh[k] if slow.undrafted[t, k] else cache[k]
        history.append(w)
    return history


@pytest.mark.parametrize(("crash", "lag"), [(0.0, 2), (0.4, 1), (0.7, 2)])
def test_its_models_are_those_of_algorithm_2_by_hand(crash, lag):
    crashes, seconds = crashing(3, crash), [2.0, 1.0, 5.0, 3.0, 4.0]
    job = training(SAFA(lag_tolerance=lag, resume=False, published=True, deadline=50.0), rounds=7)
    result = simulate(job, crashes, seconds)
    wanted = by_hand(crashes, seconds, 0.4, lag, 7, job)[-1]
    np.testing.assert_allclose(flat(result.params), flat(wanted), rtol=1e-5, atol=1e-7)


def test_an_undrafted_reply_counts_in_the_next_round():
    """Law 18. Two clients of equal size, one picked a round: the second round's model has what was undrafted in the first."""
    one = Crashes(np.zeros((4, 2), bool), np.ones((4, 2)))
    made = []

    def grow(params, data, rng):
        made.append(float(params["w"][0]))
        return {"w": params["w"] + len(data)}

    model = atoll.models.CustomLearner(init=lambda rng: {"w": np.zeros(1)}, train=grow)
    job = Training(
        model=model, algorithm=FedAvg(), selection=CFCFM(1), pacing=SAFA(published=True, deadline=9.0, resume=False),
        rounds=2, evaluation=atoll.Evaluation(server=False),
    )  # fmt: skip
    rows = []
    job = job.replace(callbacks=[rows.append])
    result = atoll.simulate(job, islands([4, 4]), engine="inline", devices=Traced([1.0, 2.0], one))
    # Round 1: client 0 is picked (4), client 1 undrafted: w(1) = (4 + 0)/2 = 2. Round 2: both train from 2; client 1 is picked (6); 0's entry is 4.
    assert made == [0.0, 0.0, 2.0, 2.0]
    assert float(result.params["w"][0]) == (4 + 6) / 2
    assert [row["picked"] for row in rows] == [1, 1]


def test_a_slow_client_works_on_and_counts_when_it_comes():
    """By default nobody pretends to know what will arrive: the round that hears of it takes the reply."""
    slow = [1.0, 1.5, 2.0, 2.5, 7.0]
    result = simulate(training(SAFA(deadline=30.0, resume=False), selection=Watched(0.4), rounds=8), NONE, slow)
    rows, picked = result.metrics, result.job.selection.log
    first = next(t for t, who in enumerate(picked) if 4 in who)
    assert rows[first]["t_end"] >= 7.0 > rows[first]["t_start"]
    assert rows[first]["version_variance"] > 0
    assert all(row["late"] >= 1 for row in rows[:first])
    assert rows.column("crashed") == [0] * 8


def test_a_round_that_cannot_be_filled_waits_for_its_deadline():
    crashes = Crashes(np.ones((3, 5), bool), np.full((3, 5), 0.5))
    result = simulate(training(SAFA(deadline=20.0), rounds=3), crashes)
    assert [row["t_end"] for row in result.metrics] == [20.0, 40.0, 60.0]
    assert result.metrics.column("silent") == result.metrics.column("crashed") == [5, 5, 5]
    assert flat(result.params) == pytest.approx(np.zeros(15))
    without = simulate(training(SAFA(), rounds=3), crashes)
    assert [row["t_end"] for row in without.metrics] == [2.5, 5.0, 7.5]  # the last loss is noticed after 2.5 s


def test_a_client_that_crashed_goes_on_from_its_whole_epochs():
    """It had done 3 of 4 epochs: its next reply is that of 7, in the time of 4."""
    crashed = np.zeros((3, 1), bool)
    crashed[0, 0] = True
    crashes = Crashes(crashed, np.array([[0.8], [1.0], [1.0]]))
    asked, work = [], []

    class Timed(Traced):
        def plan(self, parties, plan):
            work.append(plan.work().epochs.tolist())
            return super().plan(parties, plan)

    job = training(
        SAFA(deadline=50.0), rounds=2, selection=CFCFM(1), algorithm=FedAvg(lr=0.1, epochs=4, batch_size=None)
    )
    data = islands([6])
    learner = job.learner(data)
    result = atoll.simulate(job, data, engine="inline", devices=Timed([2.0], crashes))
    w = learner.init(None)
    for _ in range(7):
        gradient = learner.loss_gradient(w, data.shard(0)["x"], data.shard(0)["y"])[1]
        w = {name: w[name] - 0.1 * gradient[name] for name in w}
    np.testing.assert_allclose(flat(result.params), flat(w), rtol=1e-10)
    assert work == [[4.0], [4.0]]
    assert result.metrics.column("wasted") == pytest.approx([0.05, 0.0])  # of 0.8 updates, 0.75 were saved
    assert not asked


class Asked(Traced):
    """Seconds an epoch; remembers when the last client is asked, and for how many epochs."""

    def __init__(self, seconds, crashes):
        super().__init__(seconds, crashes)
        self.asked = []

    def plan(self, parties, plan):
        epochs = plan.work().epochs
        self.asked += [(plan.now, float(e)) for k, e in zip(parties.positions, epochs, strict=True) if k == 2]
        found = super().plan(parties, plan)
        return dataclasses.replace(found, seconds=found.seconds * epochs, energy=np.ones(len(parties)))


@pytest.mark.parametrize("resume", [True, False])
def test_a_crash_that_is_still_to_come_is_known_to_nobody(resume):
    """Rounds of 1 s; the last client would need 40 s and crashes after 36: it works until then, whatever rounds end before."""
    crashed = np.zeros((90, 3), bool)
    crashed[0, 2] = True
    devices = Asked([0.25, 0.25, 10.0], Crashes(crashed, np.where(crashed, 0.9, 1.0)))
    pacing = SAFA(deadline=50.0, lag_tolerance=100, resume=resume)
    job = Training(model=IdleModel(), algorithm=FedAvg(epochs=4), selection=CFCFM(1), pacing=pacing, rounds=80)
    rows = atoll.simulate(job, IdleIslands([9, 9, 9]), devices=devices, engine="batched", workers=1).metrics
    assert [row["t_end"] for row in rows][:40] == [float(t) for t in range(1, 41)]
    assert [row["round"] for row in rows if row["crashed"]] == [36]
    assert [row["round"] for row in rows if row["late"] == 0] == [36, 76]
    assert devices.asked[:2] == [(0.0, 4.0), (36.0, 4.0)]
    assert sum(rows.column("wasted")) == pytest.approx(0.9 - 0.75 * resume)
    assert rows.energy_wh * 3600.0 == pytest.approx(2 * 80 + len(devices.asked))


def test_whoever_is_called_off_is_credited_with_no_more_epochs_than_it_had_time_for():
    """The last client does an epoch a second, of ten, in short and long rounds; what it crashes on the way to is never heard of."""
    crashed = np.zeros((40, 3), bool)
    crashed[:, 2] = True
    for trace in (Crashes(np.zeros((40, 3), bool), np.ones((40, 3))), Crashes(crashed, np.where(crashed, 0.95, 1.0))):
        devices = Asked([0.3, 0.31, 1.0], trace)
        pacing = SAFA(deadline=50.0, lag_tolerance=100, bounded=True)
        job = Training(model=IdleModel(), algorithm=FedAvg(epochs=10), selection=CFCFM(1), pacing=pacing, rounds=8)
        atoll.simulate(job, IdleIslands([9, 9, 9]), devices=devices, engine="batched", workers=1)
        times, left = np.array(devices.asked[:5]).T
        assert left[0] == 10.0
        assert left[4] < 7.0  # it does get on
        assert (left[:-1] - left[1:] <= np.diff(times) + 1e-9).all()


@pytest.mark.parametrize(("lag", "oldest"), [(1, 0), (2, 2)])
def test_the_tolerance_binds_whoever_works_invited_or_not(lag, oldest):
    """Three of five are invited at random; one of them needs three rounds, and is called off in the third with a tolerance of 1 even if it is not invited again."""
    rule = Dated(3)
    job = training(SAFA(lag_tolerance=lag, deadline=2.0), selection=rule, rounds=30)
    rows = simulate(job, NONE, [1.0, 1.0, 1.0, 1.0, 4.5]).metrics
    assert max(rule.log) == oldest
    assert (sum(rows.column("wasted")) > 0) == (lag == 1)
    # Nobody crashed, so nobody has a model to go on with: whoever begins is sent one.
    assert rows.column("begun") == rows.column("synchronised")


@pytest.mark.parametrize("crash", [None, 0.9])
def test_what_is_overwritten_counts_for_what_was_done_of_it(crash):
    """Rounds of 1 s and a tolerance of 2: the last client, which would need 40 s (or crash after 36), begins anew every 3 s and does nothing else."""
    crashed = np.zeros((30, 3), bool)
    crashed[:, 2] = crash is not None
    crashes = Crashes(crashed, np.where(crashed, crash or 1.0, 1.0))
    rows, _ = run(crashes, [1.0, 1.0, 40.0], 1, lag_tolerance=2, deadline=50.0, selection=CFCFM(1))
    overwritten = [row["t_start"] for row in rows if row["deprecated"]]
    assert overwritten == [3.0 * k for k in range(1, 10)]
    assert sum(rows.column("wasted")) == pytest.approx(overwritten[-1] / 40.0)
    assert sum(rows.column("begun")) == 2 * 30 + 1 + len(overwritten)  # two who answer in every round, and the slow one
    assert rows.futility == pytest.approx(sum(rows.column("wasted")) / 70)


@pytest.mark.parametrize(
    "parts",
    [
        {"algorithm": Scaffold(lr=0.05, epochs=2, batch_size=3)},
        {"algorithm": Upcycled(coefficient=0.2, base=FedAvg(lr=0.1, epochs=2, batch_size=3)), "rounds": 12},
        {"uplink": (QSGD(levels=4),)},
        {"selection": Uniform(3)},
        {
            "algorithm": Upcycled(coefficient=0.2, base=Scaffold(lr=0.05, epochs=2, batch_size=3)),
            "uplink": (QSGD(levels=8),),
        },
    ],
    ids=["scaffold", "upcycled", "qsgd", "uniform", "all"],
)
def test_compositions_learn_and_are_the_same_on_engines(parts):
    job = training(SAFA(lag_tolerance=2, deadline=9.0), **{"rounds": 10, **parts})
    one = simulate(job, crashing(1))
    assert one.metrics.last("test/loss") < np.log(3)
    other = simulate(job, crashing(1), engine="batched", workers=1)
    np.testing.assert_allclose(flat(one.params), flat(other.params), rtol=1e-9, atol=1e-12)
    strip = [{k: v for k, v in row.items() if not k.startswith("test/") and k != "loss"} for row in one.metrics]
    assert strip == [{k: row[k] for k in kept} for row, kept in zip(other.metrics, strip, strict=True)]


@pytest.mark.network
def test_it_is_the_same_on_processes_too():
    job = training(SAFA(lag_tolerance=2, deadline=9.0), rounds=6)
    one, other = simulate(job, crashing(1)), simulate(job, crashing(1), engine="processes", workers=2)
    np.testing.assert_array_equal(flat(one.params), flat(other.params))


@pytest.mark.parametrize("at", [1, 3, 6])
def test_a_resumed_run_is_the_same(tmp_path, at):
    """Killed with replies under way, bases of several versions and a cache in memory."""
    slow = [1.0, 1.5, 2.0, 2.5, 7.0]
    job = training(SAFA(lag_tolerance=2, deadline=9.0), rounds=9)
    whole = simulate(job, crashing(2), slow)
    simulate(job.replace(rounds=at), crashing(2), slow, folder=tmp_path / "run")
    resumed = simulate(job, crashing(2), slow, folder=tmp_path / "run", resume=True)
    np.testing.assert_array_equal(flat(whole.params), flat(resumed.params))
    assert whole.metrics.rows == resumed.metrics.rows


def in_real_time(job, crashes, seconds, scale):
    """The same program on a real clock, five processes, a clock that is ``1 / scale`` times as fast."""
    data = islands(SIZES)
    learner = job.learner(data)
    world = World(
        data,
        ENGINES["processes"](5),
        clock=Clock(virtual=False),
        cost=Traced(np.asarray(seconds) * scale, crashes),
        registry={task.name: task for task in job.named_tasks(learner, data)},
    )
    return run_in(world, job.program(data, learner))[0]


class Sleepy(Clock):
    """A clock whose sleepers wake up 0.7 s late, as on a machine that is busy."""

    async def sleep_until(self, moment):
        await super().sleep_until(moment + 0.7)


def test_what_comes_after_the_deadline_is_the_next_rounds_however_late_the_server_looks():
    job = training(SAFA(lag_tolerance=1, deadline=5.0), rounds=1, selection=CFCFM(1.0))
    data = islands(SIZES)
    learner, rows = job.learner(data), []
    for clock in (Clock(), Sleepy()):
        registry = {task.name: task for task in job.named_tasks(learner, data)}
        cost = Traced([1.0, 2.0, 3.0, 4.0, 5.5], crashing(0, crash=0.0))
        world = World(data, ENGINES["inline"](1), clock=clock, cost=cost, registry=registry)
        rows.append(dict(run_in(world, job.program(data, learner))[0].history[0]))
    assert [(row["picked"], row["late"]) for row in rows] == [(4, 1), (4, 1)]


@pytest.mark.network
def test_a_real_clock_runs_the_same_program():
    """Five processes, injected crashes, arrivals at least 50 ms apart: the states are those of the virtual twin.

    A machine that stands still for longer than that cannot tell the arrivals apart; there the same is tried with a clock four times as slow, and again.
    """
    seconds = [1.0, 2.0, 3.0, 4.0, 5.5]
    job = training(SAFA(lag_tolerance=1, deadline=5.0), rounds=4, selection=CFCFM(0.6))
    virtual = simulate(job, crashing(4), seconds)
    for scale in (0.06, 0.24, 0.96):
        paced = job.replace(pacing=SAFA(lag_tolerance=1, deadline=5.0 * scale))
        real = in_real_time(paced, crashing(4), seconds, scale)
        if np.array_equal(flat(virtual.params), flat(real.params)):
            break
    np.testing.assert_array_equal(flat(virtual.params), flat(real.params))
    for name in ("picked", "undrafted", "crashed", "late", "deprecated", "synchronised", "version_variance", "wasted"):
        assert virtual.metrics.column(name) == real.history.column(name), name


@given(seed=st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_the_mean_moves_by_what_changes(seed):
    """Law 23: incremental aggregation equals the sum over the whole cache."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(7))
    cache = begin_cache({"w": rng.normal(size=3).astype(np.float32), "b": np.float32(1.0)}, 7)
    entered = np.zeros(7, dtype=int)
    for turn in range(1, 21):
        places = rng.choice(7, rng.integers(0, 8), replace=False)
        entered[places] = turn
        one = rng.random() < 0.3
        shape = (1 if one else len(places),)
        models = {"w": rng.normal(size=(*shape, 3)).astype(np.float32), "b": rng.normal(size=shape).astype(np.float32)}
        cache = replace_entries(cache, places, models, shares, turn)
    whole = resum_rows(cache, shares)
    np.testing.assert_allclose(cache["mean"]["w"], whole["w"], atol=1e-6)
    np.testing.assert_allclose(cache["mean"]["b"], whole["b"], atol=1e-6)
    np.testing.assert_array_equal(cache["entered"], entered)


class Hidden(Plain):
    secure = True


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"algorithm": atoll.algorithms.Mime()}, "phases anchor, train"),
        ({"aggregation": atoll.aggregation.KeepGlobal()}, "its own cache"),
        ({"downlink": QSGD(levels=4)}, "models of several versions"),
        ({"selection": atoll.selection.SizeProportional(3)}, "may draw a client twice"),
        ({"topology": atoll.topology.Hierarchical(groups=2)}, "Hierarchical has"),
        ({"algorithm": atoll.algorithms.SufficientStatistics()}, "requires its own amount of local work"),
        ({"topology": atoll.topology.Gossip()}, "rounds of its own"),
    ],
)
def test_what_makes_no_sense_is_refused(parts, why):
    with pytest.raises(CompositionError, match=why):
        training(SAFA(), **parts).learner(islands(SIZES))


def test_a_secure_reducer_is_refused():
    with pytest.raises(CompositionError, match=r"SAFA rebuilds single models, and Hidden reveals sums only"):
        training(SAFA(), reducer=Hidden())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"lag_tolerance": -1}, "lag_tolerance=-1"),
        ({"lag_tolerance": 2.5}, r"lag_tolerance=2\.5"),
        ({"lag_tolerance": 0, "literal": True}, "lag_tolerance=0"),
        ({"deadline": 0.0}, "deadline=0.0 seconds"),
        ({"lag_seconds": 0.0}, "lag_seconds=0.0"),
        ({"published": True}, "published=True without a deadline"),
        ({"bounded": True, "resume": False}, "bounded=True with"),
    ],
)
def test_bad_settings_are_named(options, why):
    with pytest.raises(ConfigError, match=why):
        SAFA(**options)


# ---------------------------------------------------------------------- beyond the published method


@given(crash=st.floats(0.01, 0.95), lag=st.integers(0, 8))
@settings(deadline=None, max_examples=60)
def test_the_rate_of_deprecation_is_that_of_runs_of_crashes(crash, lag):
    """Law 11: the chain of lags 0 .. lag+1 by its stationary distribution."""
    n = lag + 2
    step = np.zeros(
        (n, n)
    )  # state: lag of a client at the beginning of a round, lag + 1 is deprecated and begins from 0
    for s in range(n):
        age = 0 if s == lag + 1 else s
        step[s, 0] += 1 - crash
        step[s, age + 1] += crash
    values, vectors = np.linalg.eig(step.T)
    share = np.real(vectors[:, np.argmax(np.real(values))])
    share = share / share.sum()
    assert deprecation_rate(crash, lag) == pytest.approx(share[-1], rel=1e-6, abs=1e-12)


def test_the_thesis_rates_of_futility():
    """Tables A.2, A.4, A.6: 0.04 at cr = 0.7, 0.008 at 0.5, 0.0005 at 0.3, for tau = 5."""
    np.testing.assert_allclose(
        deprecation_rate(np.array([0.7, 0.5, 0.3, 0.0]), 5), [0.04, 0.008, 0.0005, 0.0], atol=6e-4
    )
    assert deprecation_rate(1.0, 4) == pytest.approx(0.2)


def test_reliable_clients_are_kept_close_and_others_may_lag():
    rule = AdaptiveLag(loss=0.01, most=10)
    tolerance = rule.tolerance(np.array([0, 30, 70, 99]), np.array([100, 100, 100, 100]))
    assert tolerance.tolist() == [0, 3, 9, 10]
    assert (np.diff(tolerance) >= 0).all()
    assert rule.tolerance(np.array([0]), np.array([0])).tolist() == [5]  # nothing known: one in two


@pytest.mark.slow
def test_an_adaptive_lag_throws_less_away_than_a_small_one_and_syncs_less():
    crashes = draw_crashes(100, 20, 0.0, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    each = np.where(np.arange(20) < 10, 0.1, 0.7)
    crashed = rng.random((100, 20)) < each
    crashes = Crashes(crashed, np.where(crashed, rng.random((100, 20)), 1.0))
    seconds = np.arange(20) + 1.0
    terms = {"deadline": 100.0, "resume": False, "published": True}
    small, _ = run(crashes, seconds, 0.5, lag_tolerance=1, **terms)
    adaptive, _ = run(crashes, seconds, 0.5, lag_tolerance=AdaptiveLag(loss=0.01), **terms)
    large, _ = run(crashes, seconds, 0.5, lag_tolerance=10, **terms)
    total = [sum(rows.column("deprecated")) for rows in (small, adaptive, large)]
    assert total[1] < total[0] / 3
    spread = [np.mean(rows.column("version_variance")) for rows in (small, adaptive, large)]
    assert spread[1] < spread[2]


class Working(Traced):
    """Client k takes ``seconds[k]`` an epoch, and nobody fails."""

    def plan(self, parties, plan):
        n = len(parties)
        return Outcomes(self.seconds[parties.positions] * plan.work().epochs, np.ones(n, bool), np.ones(n))


def test_a_bounded_round_uploads_what_it_takes():
    """Whoever still works when the round is full keeps whole epochs, and does what is left."""
    algorithm = FedAvg(lr=0.1, epochs=4, batch_size=3)
    job = training(SAFA(deadline=50.0, lag_tolerance=20), algorithm=algorithm, rounds=20)
    devices = Working([0.5, 1.0, 1.1, 1.9, 2.0], NONE)
    published = job.replace(pacing=SAFA(deadline=50.0, lag_tolerance=20, published=True))
    free = atoll.simulate(published, islands(SIZES), engine="inline", devices=devices)
    pacing = SAFA(deadline=50.0, lag_tolerance=20, bounded=True)
    bounded = atoll.simulate(job.replace(pacing=pacing), islands(SIZES), engine="inline", devices=devices)
    # Two are taken. Those who were taken before and came first have uploaded too; everyone slower has not.
    assert all(row["picked"] == 2 and row["replied"] <= 4 for row in bounded.metrics)
    assert sum(free.metrics.column("replied")) == 5 * 20
    assert sum(bounded.metrics.column("replied")) < 5 * 20 * 0.6
    # Seconds of work are epochs that were delivered, kept or cut short; who has answered waits for the round to end.
    done = 4 * (sum(bounded.metrics.column("replied")) + sum(bounded.metrics.column("wasted")))
    had = sum(bounded.metrics[-1]["t_end"] / seconds for seconds in devices.seconds)
    assert 0.0 < sum(bounded.metrics.column("wasted")) < sum(bounded.metrics.column("begun"))
    assert 0.7 * had < done <= had
    assert max(bounded.metrics.column("version_variance")) > 0.0  # slow ones do get there
    assert bounded.metrics.last("test/loss") < np.log(3)


@pytest.mark.parametrize("lag", [1, 3])
def test_in_rounds_of_one_length_a_lag_in_seconds_is_one_in_rounds(lag):
    """Everyone is wanted and somebody crashes, so that every round lasts until its deadline of 4 s."""
    crashes, seconds = draw_crashes(30, 12, 0.6, np.random.default_rng(5)), np.full(12, 2.0)
    rounds, _ = run(crashes, seconds, 1.0, lag_tolerance=lag, deadline=4.0)
    timed, _ = run(crashes, seconds, 1.0, lag_tolerance=1000, lag_seconds=4.0 * lag + 1.0, deadline=4.0)
    assert [row["t_end"] - row["t_start"] for row in rounds] == [4.0] * 30
    assert timed.column("deprecated") == rounds.column("deprecated")
    assert timed.column("synchronised") == rounds.column("synchronised")
    assert sum(timed.column("deprecated")) > 5


def test_in_uneven_rounds_seconds_deprecate_where_rounds_do_not():
    """Rounds of 1, 30, 30, 1 and 1 s: whoever crashes in one of 30 s has a model too old for a limit of 20 s, though it lags by one round or two."""
    crashed = np.zeros((5, 3), bool)
    crashed[:3, 2] = True
    crashed[2, :2] = True
    crashes, seconds = Crashes(crashed, np.where(crashed, 0.5, 1.0)), [1.0, 1.0, 1.0]
    rounds, _ = run(crashes, seconds, 1.0, lag_tolerance=3, deadline=30.0, selection=CFCFM(2))
    timed, _ = run(crashes, seconds, 1.0, lag_tolerance=3, lag_seconds=20.0, deadline=30.0, selection=CFCFM(2))
    assert rounds.column("t_end") == timed.column("t_end") == [1.0, 31.0, 61.0, 62.0, 63.0]
    assert rounds.column("deprecated") == [0, 0, 0, 0, 0]
    assert timed.column("deprecated") == [0, 0, 1, 3, 0]


def test_old_entries_weigh_less_where_that_is_wanted():
    plain = simulate(training(SAFA(deadline=9.0), rounds=12), crashing(5, 0.6))
    constant = simulate(training(SAFA(deadline=9.0, staleness=ConstantStaleness()), rounds=12), crashing(5, 0.6))
    weighed = simulate(training(SAFA(deadline=9.0, staleness=PolynomialStaleness(a=1.0)), rounds=12), crashing(5, 0.6))
    np.testing.assert_allclose(flat(plain.params), flat(constant.params), rtol=1e-9)
    assert not np.allclose(flat(plain.params), flat(weighed.params))
    assert weighed.metrics.last("test/loss") < np.log(3)
