"""HybridFL on the real course: its laws, both forms of aggregation, traffic, crashes, engines, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.algorithms import FedAdam, FedAvg, FedAvgM, FedProx, Scaffold, Upcycled
from atoll.core import message as M
from atoll.core.errors import CompositionError, ConfigError, QuorumError
from atoll.core.federation.reducer import Plain
from atoll.core.requests.cohort import Community
from atoll.core.requests.party import Roster
from atoll.core.requests.results import Outcomes, Terms
from atoll.core.world import World
from atoll.engines import ENGINES
from atoll.learn.pacing.slack import ChanceConstrained, Forgetting, LateCount, PaperLiteral, Ratio, UncensoredOnly
from atoll.models import Linear
from atoll.models.idle import IdleIslands, IdleModel
from atoll.pacing import HybridFL, Synchronous
from atoll.programs.factorisation import SumsOnly
from atoll.simulation import run_in
from atoll.stages import QSGD, ErrorFeedback, TopK
from atoll.topology import Gossip, Hierarchical
from tests.support.killed_trainings import killed_training
from tests.support.learn_toys import flat, islands

SIZES = (6, 9, 4, 12, 7, 5, 10, 8)
REGIONS = ((0, 3, 6), (1, 4), (2, 5, 7))
LIMIT = 10.0


class Devices:
    """Client k answers after ``seconds[k]``, or drops out of a turn with ``drop[k]``; it remembers whom it was asked about."""

    def __init__(self, n: int, drop: Any = 0.0, seed: int = 0, latency: float = 0.0, seconds: Any = None) -> None:
        draw = np.random.default_rng(seed)
        drawn = np.round(draw.uniform(1, 12, n), 1)
        self.seconds = drawn if seconds is None else np.asarray(seconds, dtype=np.float64)
        self.drop = np.broadcast_to(np.asarray(drop, dtype=np.float64), (n,))
        self.luck = draw.random((400, n))
        self.latency, self.asked = latency, {}

    def alive(self, turn: int) -> Any:
        return self.luck[turn] >= self.drop

    def plan(self, parties: Any, plan: Any) -> Outcomes:
        at = parties.positions
        self.asked.setdefault(plan.turn, set()).update(at.tolist())
        done = self.alive(plan.turn)[at]
        return Outcomes(np.where(done, self.seconds[at], 0.5), done, np.where(done, 1.0, 0.5), np.full(len(at), 36.0))

    def transfer(self, source: str, target: str, nbytes: int) -> float:
        return self.latency

    def came(self, turn: int) -> list[int]:
        """Who answers in time, in order."""
        who = [k for k in self.asked.get(turn, ()) if self.alive(turn)[k] and self.seconds[k] <= LIMIT]
        return sorted(who, key=lambda k: (self.seconds[k], k))


def training(
    count: float | int = 0.5, rounds: int = 4, *, groups: Any = REGIONS, model: Any = None, **more: Any
) -> Any:
    parts: dict[str, Any] = {
        "algorithm": FedAvg(lr=0.1, steps=2, batch_size=None),
        "pacing": HybridFL(deadline=LIMIT),
        "evaluation": atoll.Evaluation(every=1000),
        **more,
    }
    topology = Hierarchical(groups=groups)
    return atoll.Training(
        model=model or Linear(4, 3), topology=topology, selection=atoll.Uniform(count), rounds=rounds, **parts
    )


def regions(row: Any, name: str, count: int = len(REGIONS)) -> list[Any]:
    return [row[f"edge-{r}/{name}"] for r in range(count)]


# ---------------------------------------------------------------------- the laws of a round


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 6),
    st.sampled_from([0.1, 0.3, 0.5, 1.0]),
    st.floats(0, 1),
    st.sampled_from([LateCount(), PaperLiteral(), Forgetting(), UncensoredOnly(), Ratio(), ChanceConstrained()]),
    st.booleans(),
    st.integers(0, 1000),
)
def test_laws_of_a_round(n, edges, share, drop, slack, joint, seed):
    """``sum |Psi_r| = min(C N, sum |X_r|)``; Psi in X in S; nobody aggregates after the limit; it ends with its last submission."""
    edges = min(edges, n)
    devices = Devices(n, drop, seed)
    devices.seconds = np.minimum(devices.seconds, LIMIT)  # all can answer in time
    pacing = HybridFL(slack=slack, deadline=LIMIT, joint=joint)
    job = training(share, 6, groups=edges, model=IdleModel(), pacing=pacing)
    rows = atoll.simulate(job, IdleIslands(np.arange(n) % 7 + 1), devices=devices, seed=seed).metrics
    quota = math.ceil(share * n - 1e-9)
    members = np.array([len(part) for part in np.array_split(np.arange(n), edges)])
    for turn, row in enumerate(rows, 1):
        submitted, selected, edc = (np.array(regions(row, name, edges)) for name in ("submitted", "selected", "edc"))
        came = devices.came(turn)
        assert submitted.sum() == min(quota, len(came)) == row["replied"]
        assert (submitted <= selected).all()
        assert (selected <= members).all()
        assert selected.sum() == len(devices.asked.get(turn, ())) == row["selected"]
        completed = regions(row, "completed", edges)
        if None not in completed:
            assert sum(completed) == len(came)
            assert (submitted <= completed).all()
        length = row["t_end"] - row["t_start"]
        assert length <= LIMIT + 1e-9
        if len(came) >= quota:
            assert length == pytest.approx(devices.seconds[came[quota - 1]])
            first = came[:quota]
            assert edc.sum() == sum(k % 7 + 1 for k in first) == row["edc"]
        elif len(came) < row["selected"]:
            assert length == pytest.approx(LIMIT)


def test_both_levels_are_one_weighted_sum():
    """(4.19) and (4.22) are (4.23), whose weights add up to one, with the region's last model for every absent client."""
    data, devices = islands(SIZES), Devices(len(SIZES), 0.3, seed=3)
    job = training(rounds=6)
    learner = job.learner(data)
    oracle = [learner.init(atoll.core.algebra.rng.Rng(0))] * len(REGIONS)
    now = oracle[0]
    atoll.simulate(job, data, devices=devices)
    for turn in range(1, 7):
        submitted = devices.came(turn)[:4]
        models = {k: _trained(learner, now, data.shard(k)) if k in submitted else None for k in range(len(SIZES))}
        edc = np.array([sum(SIZES[k] for k in submitted if k in region) for region in REGIONS], dtype=np.float64)
        assert edc.sum() > 0
        new, flat_sum, total = [], np.zeros(flat(now).size), 0.0
        for r, region in enumerate(REGIONS):
            size = sum(SIZES[k] for k in region)
            full = [models[k] or oracle[r] for k in region]
            new.append(
                {name: sum(SIZES[k] / size * w[name] for k, w in zip(region, full, strict=True)) for name in now}
            )
            for k, w in zip(region, full, strict=True):
                gamma = edc[r] / edc.sum() * SIZES[k] / size
                flat_sum, total = flat_sum + gamma * flat(w), total + gamma
        assert total == pytest.approx(1.0)
        oracle, now = new, {n: sum(e * w[n] for e, w in zip(edc, new, strict=True)) / edc.sum() for n in now}
        np.testing.assert_allclose(flat(now), flat_sum, rtol=1e-12, atol=1e-14)
        got = atoll.simulate(job.replace(rounds=turn), data, devices=devices)
        np.testing.assert_allclose(flat(got.params), flat(now), rtol=1e-10, atol=1e-12)


def _trained(learner: Any, params: Any, shard: Any) -> Any:
    for _ in range(2):
        gradient = learner.loss_gradient(params, np.asarray(shard.x), np.asarray(shard.y))[1]
        params = {name: params[name] - 0.1 * gradient[name] for name in params}
    return params


def test_with_everyone_it_is_flat_training():
    data = islands(SIZES)
    full: dict[str, Any] = {"lr": 0.1, "batch_size": None, "steps": 3}
    for algorithm in (FedAvg(**full), FedProx(**full, mu=0.1), FedAvgM(**full), FedAdam(**full)):
        job = training(1.0, algorithm=algorithm)
        one = atoll.simulate(job, data)
        other = atoll.simulate(
            job.replace(topology=atoll.topology.Star(), pacing=Synchronous(), selection=atoll.Everyone()), data
        )
        np.testing.assert_allclose(flat(one.params), flat(other.params), rtol=1e-6, atol=1e-9)


def test_the_factor_finds_the_mean_survival():
    """100 clients a region; the standard error of a mean of 60 rounds of 60 draws is below 0.01, the law's own bias below that."""
    drop = np.repeat([0.1, 0.5], 100)
    devices = Devices(200, drop, seed=1)
    devices.seconds = np.minimum(devices.seconds, LIMIT)
    job = training(0.3, 80, groups=2, model=IdleModel())
    rows = atoll.simulate(job, IdleIslands([5] * 200), devices=devices).metrics
    assert rows[0]["edge-0/theta"] == rows[0]["edge-1/theta"] == 0.5
    assert rows[-1]["edge-0/theta"] == pytest.approx(0.9, abs=0.03)
    assert rows[-1]["edge-1/theta"] == pytest.approx(0.5, abs=0.03)
    survivors = [np.mean([row[f"edge-{r}/completed"] for row in rows[40:]]) / 100 for r in range(2)]
    np.testing.assert_allclose(survivors, 0.3, atol=0.03)
    literal = job.replace(pacing=HybridFL(slack=PaperLiteral(), deadline=LIMIT))
    stuck = atoll.simulate(literal, IdleIslands([5] * 200), devices=devices).metrics
    assert stuck[-1]["edge-0/theta"] == pytest.approx(0.5, abs=0.01)


def test_an_edge_learns_from_a_round_when_its_limit_has_passed():
    """With hindsight the second round is sized by the first; without, the first round whose limit has passed."""
    seconds = np.array([1.0] * 10 + [6.0] * 10)
    devices = Devices(20, 0.0, seconds=seconds)
    rows = {}
    for hindsight in (False, True):
        job = training(0.5, 14, groups=1, model=IdleModel(), pacing=HybridFL(deadline=LIMIT, hindsight=hindsight))
        rows[hindsight] = list(atoll.simulate(job, IdleIslands([3] * 20), devices=devices).metrics)
    assert [row["edge-0/selected"] for row in rows[True][:2]] == [20, 10]  # theta 0.5, then 1
    early = [row for row in rows[False] if row["t_start"] < LIMIT]
    assert [row["edge-0/selected"] for row in early] == [20] * 10  # a second each
    assert [row["edge-0/selected"] for row in rows[False][10:]] == [10] * 4


def test_a_factor_to_begin_with_and_one_of_its_own():
    devices = Devices(20)
    for slack in (LateCount(), ChanceConstrained()):
        for theta, expected in ((None, 0.5), (0.25, 0.25)):
            pacing = HybridFL(slack=slack, theta=theta, deadline=LIMIT)
            job = training(0.1, 1, groups=1, model=IdleModel(), pacing=pacing)
            row = atoll.simulate(job, IdleIslands([3] * 20), devices=devices).metrics[0]
            assert row["edge-0/theta"] == expected


def test_fast_regions_do_not_keep_slow_ones_out():
    seconds = np.repeat([1.0, 5.0], 20)
    devices = Devices(40, 0.0, seconds=seconds)
    found = {}
    for most in (None, 1.0):
        job = training(0.3, 3, groups=2, model=IdleModel(), pacing=HybridFL(deadline=LIMIT, most=most))
        found[most] = atoll.simulate(job, IdleIslands([3] * 40), devices=devices).metrics[0]
    assert regions(found[None], "submitted", 2) == [
        12,
        0,
    ]  # 12 of 40 are wanted, and all of the fast region's were invited
    assert regions(found[1.0], "submitted", 2) == [6, 6]
    assert (found[None]["client_seconds"], found[1.0]["client_seconds"]) == (1.0, 5.0)


def test_together_fewer_clients_are_sure_enough():
    devices = Devices(200, 0.4, seed=2)
    chosen = {}
    for joint in (False, True):
        pacing = HybridFL(slack=ChanceConstrained(delta=0.05), theta=0.6, deadline=LIMIT, joint=joint)
        job = training(0.3, 1, groups=10, model=IdleModel(), pacing=pacing)
        chosen[joint] = atoll.simulate(job, IdleIslands([3] * 200), devices=devices).metrics[0]["selected"]
    assert 100 < chosen[True] < chosen[False]  # 100 in the mean


# ---------------------------------------------------------------------- nobody, nowhere, nothing


def test_a_round_without_submissions_changes_nothing():
    data = islands(SIZES)
    result = atoll.simulate(training(rounds=3), data, devices=Devices(len(SIZES), 1.0))
    assert [row["failed"] for row in result.metrics] == ["none of 8 clients submitted a model"] * 3
    assert [row["t_end"] for row in result.metrics] == [LIMIT, 2 * LIMIT, 3 * LIMIT]
    assert not flat(result.params).any()
    job = training(pacing=HybridFL(deadline=LIMIT, on_failure="stop"))
    with pytest.raises(QuorumError, match=r"none of 8 clients submitted a model.*round 1"):
        atoll.simulate(job, data, devices=Devices(len(SIZES), 1.0))


def test_without_a_limit_a_round_ends_when_links_have_noticed():
    result = atoll.simulate(
        training(rounds=2, pacing=HybridFL()), islands(SIZES), devices=Devices(len(SIZES), [1.0] * 7 + [0.0], seed=5)
    )
    assert [row["replied"] for row in result.metrics] == [1, 1]
    assert result.metrics[-1]["edge-2/theta"] < 0.5


def test_a_region_that_is_lost_keeps_its_model_and_has_no_weight():
    drop = [1.0 if k in REGIONS[1] else 0.0 for k in range(len(SIZES))]
    data = islands(SIZES)
    devices = Devices(len(SIZES), drop, seconds=[1] * 8)
    rows = atoll.simulate(training(1.0, 3), data, devices=devices).metrics
    assert [regions(row, "edc") for row in rows] == [[28.0, 0.0, 17.0]] * 3
    assert rows[-1]["edge-1/theta"] == 0.01  # its floor


def test_the_share_of_one_and_a_count_above_a_region():
    devices = Devices(len(SIZES), 0.0, seconds=[1] * 8)
    row = atoll.simulate(training(7, 1), islands(SIZES), devices=devices).metrics[0]
    assert regions(row, "selected") == [3, 2, 3]
    assert row["replied"] == 7
    row = atoll.simulate(training(0.0, 1), islands(SIZES), devices=devices).metrics[0]
    assert row["replied"] == 1


def test_regions_whose_sizes_nobody_knows_are_asked_once():
    data = islands(SIZES)
    hidden = Community({name: data.shard(i) for i, name in enumerate(data.names)})
    hidden.test = data.test
    known, asked = (atoll.simulate(training(rounds=3), d, devices=Devices(8), engine="inline") for d in (data, hidden))
    assert [row["edc"] > 0 for row in asked.metrics] == [True] * 3
    assert known.bytes["messages_down"] < asked.bytes["messages_down"]


# ---------------------------------------------------------------------- parts that compose


@pytest.mark.parametrize(
    "more",
    [
        {"algorithm": Upcycled(base=FedAvg(lr=0.1), coefficient=0.5)},
        {"uplink": (QSGD(levels=8),)},
        {"uplink": (ErrorFeedback(TopK(0.5)),)},
        {"downlink": TopK(0.5)},
        {"algorithm": FedAvgM(lr=0.1)},
    ],
    ids=["upcycled", "quantised", "sparse", "downlink", "momentum"],
)
def test_what_composes_learns(more: dict[str, Any]):
    data = islands([20] * 8)
    job = training(0.5, 20, evaluation=atoll.Evaluation(every=20), **more)
    rows = atoll.simulate(job, data, devices=Devices(8, 0.2)).metrics
    assert np.mean([row["loss"] for row in rows if "loss" in row][-3:]) < 0.8 * np.log(3)
    if isinstance(job.algorithm, Upcycled):
        assert [row["selected"] > 0 for row in rows] == [True, False] * 10


def test_sums_are_all_that_edges_need():
    data, devices = islands([6] * 12), Devices(12, seconds=[1] * 12)
    job = training(1.0, groups=2)
    one, other = (atoll.simulate(job.replace(reducer=r), data, devices=devices) for r in (Plain(), SumsOnly()))
    np.testing.assert_array_equal(flat(one.params), flat(other.params))


class Deaf(Plain):
    """Ends when it likes."""

    async def reduce(self, reduction: Any) -> Any:
        return await reduction.fold(terms=Terms(deadline=LIMIT))


def test_a_reducer_that_does_not_hear_of_the_quota_is_refused():
    with pytest.raises(CompositionError, match="Deaf waits for its own replies, not for the quota"):
        atoll.simulate(training(1.0, reducer=Deaf()), islands(SIZES))


def test_the_best_model_is_kept():
    job = training(0.5, 12, algorithm=FedAvg(lr=3.0), keep_best="test/loss", evaluation=atoll.Evaluation(every=1))
    result = atoll.simulate(job, islands(SIZES), devices=Devices(8))
    assert result.round == result.metrics.best("test/loss")[0]


def test_traffic_of_both_kinds_of_links():
    """Models go to every edge and back, and to every client invited; counts, the signal, cancellations and beacons are metered too."""
    devices = Devices(8, 0.0, seconds=[1, 2, 3, 4, 5, 6, 7, 8])
    job, data = training(0.5, 1, groups=2, model=IdleModel(1000)), IdleIslands([4] * 8)

    async def links(fed: Any) -> Any:
        await job.program(data)(fed)
        return {hub: [fed.meter.links(hub, way) for way in ("down", "up")] for hub in ("server", "edge-0", "edge-1")}

    world = World(data, ENGINES["inline"](1), Roster(data.names, others=job.topology.servers(8)), cost=devices)
    learner = job.learner(data)
    world.registry.update({known.name: known for known in job.named_tasks(learner, data)})
    down, up = (found := run_in(world, links)[0])["server"]
    assert sorted(down) == sorted(up) == [8, 9]
    assert all(8000 < n < 8300 for n in [*down.values(), *up.values()])
    bit = M.nbytes(None)
    assert list(found["edge-0"][0]) == [0, 1, 2, 3]  # theta 0.5 invites everyone
    assert {k: n > 8000 for k, n in found["edge-0"][1].items()} == dict.fromkeys(range(4), True)
    assert found["edge-1"][1] == dict.fromkeys(range(4, 8), bit)  # late: a beacon, no model
    assert len(set(found["edge-1"][0].values())) == 1
    assert found["edge-1"][0][4] == found["edge-0"][0][0] + bit  # and told to stop


def test_energy_and_times_are_in_the_rows():
    devices = Devices(8, 0.0, latency=0.25)
    rows = atoll.simulate(training(0.5, 2), islands(SIZES), devices=devices).metrics
    for row in rows:
        assert row["energy_wh"] == pytest.approx(row["selected"] * 36 / 3600)
        assert row["cloud_seconds"] == pytest.approx(0.5)
        assert row["t_end"] - row["t_start"] == pytest.approx(row["client_seconds"] + 0.5)


# ---------------------------------------------------------------------- crashes and engines


def test_a_killed_run_resumes_to_the_bit(tmp_path: Any):
    job = training(0.5, 4, uplink=(TopK(0.5),), pacing=HybridFL(deadline=LIMIT, most=2.0))
    whole = killed_training(job, islands(SIZES), tmp_path, points=10, cost=lambda: Devices(8, 0.3, latency=0.1))
    assert whole.records["main"][-1]["edge-0/theta"] != 0.5


@pytest.mark.network
def test_engines_agree():
    data, devices = islands(SIZES), Devices(8, 0.3)
    job = training(0.5, 4, algorithm=FedAvg(lr=0.1))
    one = atoll.simulate(job, data, engine="inline", devices=devices)
    for engine in ("batched", "processes", "socket"):
        other = atoll.simulate(job, data, engine=engine, workers=2, devices=devices)
        np.testing.assert_allclose(flat(other.params), flat(one.params), rtol=1e-9, atol=1e-12)
        for name in ("t_end", "replied", "edc", "edge-0/theta", "edge-2/submitted", "bytes_up", "bytes_down"):
            assert other.metrics.column(name) == one.metrics.column(name)
        assert other.bytes == one.bytes


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"slack": 0.5}, r"slack=0\.5"),
        ({"theta": 0.0}, r"initial=0\.0"),
        ({"deadline": 0.0}, r"deadline=0\.0 seconds"),
        ({"most": 0.5}, "the regions together could not fill the quota"),
        ({"on_failure": "cry"}, "on_failure='cry'"),
    ],
)
def test_settings_that_cannot_be(options: dict[str, Any], match: str):
    with pytest.raises(ConfigError, match=match):
        HybridFL(**options)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"topology": atoll.topology.Star()}, "HybridFL paces the rounds of edges under a cloud"),
        ({"topology": Gossip()}, "HybridFL paces the rounds of edges under a cloud"),
        (
            {"topology": Hierarchical(groups=2, every=3)},
            "Hierarchical has no cloud that averages after every edge round",
        ),
        ({"selection": atoll.Everyone()}, "Everyone picks clients by what it knows"),
        ({"aggregation": atoll.aggregation.KeepGlobal()}, "KeepGlobal uses another rule"),
        ({"aggregation": atoll.aggregation.EqualWeights()}, "EqualWeights uses another rule"),
        ({"algorithm": Scaffold()}, "Scaffold replies with update, "),
        ({"algorithm": atoll.FedSGD()}, "FedSGD replies with gradient"),
    ],
)
def test_compositions_that_make_no_sense(changes: dict[str, Any], match: str):
    with pytest.raises(CompositionError, match=match):
        atoll.simulate(training().replace(**changes), islands(SIZES))


def test_a_limit_that_nobody_can_meet():
    class Known(Devices):
        def forecast(self, parties: Any, plan: Any) -> Any:
            return self.seconds[parties.positions]

    with pytest.raises(ConfigError, match=r"no client can answer within deadline=0\.5 s"):
        atoll.simulate(training(pacing=HybridFL(deadline=0.5)), islands(SIZES), devices=Known(8))
