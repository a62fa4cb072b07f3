"""Topologies: laws of mixing by mail, equality with the flat training where it must hold, traffic, crashes, engines, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atoll
import atoll.algorithms as algorithms
from atoll.algorithms import FedAdam, FedAvg, FedAvgM, FedPAQ, Scaffold, SufficientStatistics, Walkman
from atoll.core.errors import AtollError, CompositionError
from atoll.core.facets import facet
from atoll.core.requests.cohort import Community
from atoll.core.requests.stage import StageContext, WithMemory
from atoll.core.requests.task import task
from atoll.core.world import World
from atoll.engines import ENGINES
from atoll.learn.topology.mixing import Mixer
from atoll.models import Linear
from atoll.models.quadratic import Quadratic, minimiser, quadratics
from atoll.simulation import run_in
from atoll.stages import QSGD, RandomK, TopK
from atoll.topology import (
    CFL,
    ClusteredGossip,
    Complete,
    Cooperative,
    Cyclic,
    DefKT,
    EdgeList,
    Gossip,
    Graph,
    Hierarchical,
    Membership,
    RandomWalk,
    Ring,
    Star,
    Swarm,
    TimeVarying,
    contraction,
    metropolis,
)
from tests.support.killed_trainings import killed_training
from tests.support.learn_toys import Fixed, flat, islands
from tests.support.matrix import make_local

FULL: dict[str, Any] = {"lr": 0.01, "steps": 5, "batch_size": None}
ALL_AT_ONCE = {
    "Gossip": Gossip(graph=Ring()),
    "Gossip over a changing graph": Gossip(graph=TimeVarying(Ring(), 0.9), mixing=2),
    "CHOCO": Gossip(graph=Ring(), compress=TopK(0.5), gamma=0.4, mixing=2),
    "members": Gossip(graph=Complete(), members=Membership(joins=((2, 2),), leaves=((0, 3),))),
    "Hierarchical": Hierarchical(groups=2, every=2),
    "ClusteredGossip": ClusteredGossip(groups=3, graph=Ring()),
    "Cooperative": Cooperative(groups=2, every=2),
    "RandomWalk": RandomWalk(graph=Ring(), tokens=2, hops=2),
    "DefKT": DefKT(pairs=2),
    "Cyclic": Cyclic(order="shuffled"),
    "Swarm": Swarm(order="shuffled"),
    "CFL": CFL(settled=5.0, pulling=5.1, smallest=1),
}
TOPOLOGIES = pytest.mark.parametrize("name", list(ALL_AT_ONCE))


def on_quadratics(algorithm: Any, topology: Any, rounds: int = 30, **more: Any) -> Any:
    job = atoll.Training(
        model=Quadratic(20),
        algorithm=algorithm,
        topology=topology,
        selection=atoll.Everyone(),
        rounds=rounds,
        evaluation=atoll.Evaluation(every=rounds),
        **more,
    )
    return atoll.simulate(job, quadratics(), engine="inline", seed=0)


def gap(params: Any) -> float:
    data = quadratics()
    off = params["w"] - minimiser(data)[0]
    matrix = np.mean([np.asarray(data.shard(k).x) for k in range(len(data))], axis=0)
    return float(0.5 * off @ matrix @ off)


# ---------------------------------------------------------------------- mixing by mail


@task
def begin(island, message):
    x = np.asarray(island.data["x"])
    node = {"server": {"params": {"w": x}, "count": 3}, "client": None, "buffers": {}}
    island.state = {**node, "copy": {"server/params/w": 0 * x}, "around": {"server/params/w": 0 * x}}
    return {}


@task
def tell(island, message):
    return island.state["server"]["params"]["w"]


def mixed(x: np.ndarray, mixer: Any, rounds: int = 1) -> tuple[list[np.ndarray], dict[str, int], Any]:
    """The nodes' vectors after every round, the bytes, and the meter."""
    names = [f"n{i}" for i in range(len(x))]
    made = mixer(names)

    async def program(fed):
        await fed.ask_all(fed.parties, begin)
        found = []
        before = fed.bytes()
        for number in range(1, rounds + 1):
            await made.mix(fed, fed.parties, number, 7)
        spent = {k: v - before[k] for k, v in fed.bytes().items()}
        found.append(np.stack((await fed.ask_all(fed.parties, tell)).values))
        return found, spent, fed.meter

    world = World(Community({name: {"x": row} for name, row in zip(names, x, strict=True)}), ENGINES["inline"](1))
    world.registry[made.task.name] = made.task
    return run_in(world, program)[0]


@pytest.mark.parametrize("graph", [Ring(), Ring(3), Complete(), TimeVarying(Ring(2), 0.8)], ids=repr)
def test_mail_mixes_as_the_matrix_does(graph: Graph):
    from atoll.core.algebra.rng import Rng

    x = np.random.default_rng(0).normal(size=(8, 6))
    (after,), _, _ = mixed(x, lambda names: Mixer(graph, names, steps=3))
    matrix = metropolis(8, graph.edges(8, Rng(7)))
    np.testing.assert_allclose(after, np.linalg.matrix_power(matrix, 3) @ x, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(after.mean(axis=0), x.mean(axis=0), atol=1e-14)
    off = np.linalg.norm(x - x.mean(axis=0))
    assert np.linalg.norm(after - x.mean(axis=0)) <= contraction(matrix) ** 3 * off * (1 + 1e-12) + 1e-13


def test_equal_nodes_stay_equal_to_the_bit():
    x = np.tile(np.random.default_rng(1).normal(size=6), (7, 1))
    (after,), _, _ = mixed(x, lambda names: Mixer(Ring(2), names, steps=4))
    np.testing.assert_array_equal(after, x)


def test_a_step_costs_one_model_a_neighbour():
    x = np.zeros((10, 5000))
    for graph, degree in ((Ring(), 2), (Ring(2), 4), (Complete(), 9)):
        for steps in (1, 3):
            _, spent, meter = mixed(x, lambda names, g=graph, s=steps: Mixer(g, names, steps=s))
            models = 10 * degree * steps * 5000 * 8
            assert models < spent["bytes_up"] < 1.02 * models
            assert models < spent["bytes_down"] < 1.02 * models
            sent = np.array(list(meter.links("server", "up").values()))
            assert np.ptp(sent) < 64  # every node sends as much as every other


@pytest.mark.quick("top-k")
@pytest.mark.parametrize(("stage", "gamma"), [(TopK(0.2), 0.2), (QSGD(levels=4), 0.3)], ids=["top-k", "qsgd"])
def test_choco_converges_and_naive_compressed_gossip_does_not(stage: Any, gamma: float):
    from atoll.core.algebra.rng import Rng

    x = np.random.default_rng(2).normal(size=(8, 40))
    mean = x.mean(axis=0)
    (after,), _, _ = mixed(x, lambda names: Mixer(Ring(), names, compress=stage, gamma=gamma), rounds=120)
    np.testing.assert_allclose(after.mean(axis=0), mean, atol=1e-12)  # kept exactly, whatever the compressor loses
    assert np.linalg.norm(after - mean) < 1e-2 * np.linalg.norm(x - mean)

    # Naive: everyone sends C(x_i), and x_i <- x_i + gamma sum_j W_ij (C(x_j) - x_i).
    matrix, naive = metropolis(8, Ring().edges(8, Rng(0))), x.copy()
    for number in range(120):
        public = stage.public(Rng(number))
        sent = [stage.encode({"w": row}, StageContext.of(Rng(100 * number + i), public)) for i, row in enumerate(naive)]
        told = np.stack([facet(stage, WithMemory).decode_one(wire, public, None)["w"] for wire in sent])
        naive = naive + gamma * (matrix @ told - naive)
    assert np.linalg.norm(naive - mean) > 0.1 * np.linalg.norm(x - mean)


def test_compression_is_measured_on_the_links():
    x = np.random.default_rng(3).normal(size=(6, 4000))
    plain = mixed(x, lambda names: Mixer(Ring(), names))[1]["bytes_up"]
    small = mixed(x, lambda names: Mixer(Ring(), names, compress=QSGD(levels=4), gamma=0.3))[1]["bytes_up"]
    assert small < plain / 10


# ---------------------------------------------------------------------- equality with the flat training


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "algorithm", [FedAvg(**FULL), Scaffold(**FULL), FedAvgM(**FULL), FedAdam(**FULL)], ids=lambda a: type(a).__name__
)
@pytest.mark.parametrize(
    "topology",
    [
        Gossip(graph=Complete()),
        Hierarchical(groups=2, every=1),
        ClusteredGossip(groups=5, graph=Complete()),
        Cooperative(groups=2, graph=Complete(), every=1),
    ],
    ids=lambda t: type(t).__name__,
)
def test_what_must_be_the_flat_training_is(algorithm: Any, topology: Any):
    flat_one = on_quadratics(algorithm, Star(), rounds=12)
    other = on_quadratics(algorithm, topology, rounds=12)
    if isinstance(algorithm, FedAdam):  # its server is not linear in the update: a mean of servers is another method
        assert np.abs(other.params["w"] - flat_one.params["w"]).max() > 1e-3
        return
    np.testing.assert_allclose(other.params["w"], flat_one.params["w"], rtol=1e-9, atol=1e-11)


def test_one_node_alone_is_plain_descent():
    data = quadratics(clients=1)
    job = atoll.Training(model=Quadratic(20), algorithm=FedAvg(**FULL), selection=atoll.Everyone(), rounds=7)
    one = atoll.simulate(job, data, engine="inline").params["w"]
    for topology in (Gossip(graph=Complete()), Hierarchical(groups=1), RandomWalk(graph=Complete())):
        found = atoll.simulate(job.replace(topology=topology), data, engine="inline").params["w"]
        np.testing.assert_allclose(found, one, rtol=1e-13)


@pytest.mark.slow
def test_control_variates_that_gossip_are_gradient_tracking():
    biased = on_quadratics(FedAvg(**FULL), Gossip(graph=Ring()), rounds=30)
    exact = on_quadratics(Scaffold(**FULL), Gossip(graph=Ring()), rounds=200)
    assert gap(biased.params) > 1.0
    assert gap(exact.params) < 1e-7
    assert exact.metrics[-1]["consensus"] < 1e-3 < biased.metrics[-1]["consensus"]


@pytest.mark.slow
def test_a_walk_with_memory_reaches_the_optimum_and_one_without_circles():
    walk = RandomWalk(hops=10)
    assert gap(on_quadratics(FedAvg(**FULL), walk, rounds=30).params) > 1.0
    assert gap(on_quadratics(Walkman(rho=3.0, lr=0.02, steps=5, batch_size=None), walk, rounds=100).params) < 1e-6
    several = RandomWalk(hops=5, tokens=3)
    result = on_quadratics(Walkman(rho=3.0, lr=0.02, steps=5, batch_size=None, tokens=3), several, rounds=120)
    assert gap(result.params) < 1e-6
    assert result.metrics[-1]["spread"] < 1e-3


# ---------------------------------------------------------------------- what rests on everybody

POOLED = ("AndersonADMM", "DANE", "DINGO", "FastADMM", "GIANT", "Mime", "MimeSVRG")


@pytest.mark.parametrize("name", POOLED)
def test_edges_that_would_run_apart_what_rests_on_everybody_are_refused(name: str):
    job = atoll.Training(model=Linear(4, 3), algorithm=make_local(name), selection=atoll.Everyone(), rounds=1)
    data = islands((20, 30, 25, 15))
    for topology in (Hierarchical(groups=2), ClusteredGossip(groups=2)):
        with pytest.raises(
            CompositionError, match=rf"{type(topology).__name__} knows only that of an edge's clients.*Remedy.*Star"
        ):
            atoll.simulate(job.replace(topology=topology), data, engine="inline")
    star, one_edge = (
        atoll.simulate(job.replace(topology=t), data, engine="inline").params for t in (Star(), Hierarchical(groups=1))
    )
    if job.algorithm.batch_size is None:  # mini-batches follow the path of the request, which an edge is part of
        np.testing.assert_allclose(flat(one_edge), flat(star), rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------------- traffic


def _wide(clients: int = 8, features: int = 300) -> Any:
    draw = np.random.default_rng(0)
    parts = [
        atoll.data.Dataset(
            {"x": draw.normal(size=(4, features)), "y": draw.integers(0, 10, 4)}, task="classification", classes=10
        )
        for _ in range(clients)
    ]
    return atoll.data.Islands.from_datasets(parts)


def _traffic(topology: Any, rounds: int = 4) -> tuple[Any, int]:
    job = atoll.Training(
        model=Linear(300, 10),
        algorithm=FedAvg(lr=0.01),
        topology=topology,
        selection=atoll.Everyone(),
        rounds=rounds,
        evaluation=atoll.Evaluation(every=rounds),
    )
    return atoll.simulate(job, _wide(), engine="inline"), (300 * 10 + 10) * 8


def test_the_cloud_hears_edges_only():
    result, model = _traffic(Hierarchical(groups=2, every=3))
    for row in result.metrics:
        assert row["cloud_bytes_up"] == pytest.approx(2 * model, rel=0.02)  # E models for kappa_2 rounds, each way
        assert row["cloud_bytes_down"] == pytest.approx(2 * model, rel=0.02)
        assert row["bytes_up"] == pytest.approx((3 * 8 + 2) * model, rel=0.02)
    flat_one, _ = _traffic(Star())
    saved = 3 * flat_one.metrics[0]["bytes_up"] / result.metrics[0]["cloud_bytes_up"]
    assert saved == pytest.approx(8 * 3 / 2, rel=0.03)  # N kappa_2 / E


def test_edges_that_gossip_send_to_their_neighbours():
    result, model = _traffic(ClusteredGossip(groups=4, graph=Ring(), mixing=2))
    row = result.metrics[-1]
    assert row["bytes_up"] == pytest.approx(8 * model, rel=0.02)
    assert row["bytes_down"] == pytest.approx((8 + 4 * 2 * 2) * model, rel=0.02)


def test_the_server_of_clusters_hears_one_device_of_each():
    result, model = _traffic(Cooperative(groups=2, graph=Ring(), every=2))
    turns = [row["server_bytes_up"] for row in result.metrics]
    assert turns[0] == turns[2] == 0
    assert turns[1] == turns[3] == pytest.approx(2 * model, rel=0.02)
    assert result.metrics[1]["server_bytes_down"] == pytest.approx(8 * model, rel=0.02)


def test_a_token_is_one_model_a_hop():
    result, model = _traffic(RandomWalk(graph=Complete(), tokens=2, hops=3))
    assert max(row["bytes_up"] for row in result.metrics) <= 2 * 3 * model * 1.03  # with the letters' envelopes
    assert sum(row["bytes_up"] for row in result.metrics) > 4 * 2 * 3 * model * 0.5  # it stays with probability 1/8


def test_what_an_observer_asks_is_no_traffic_of_the_round():
    result, model = _traffic(Gossip(graph=Ring()))
    for row in result.metrics:
        assert row["bytes_up"] == pytest.approx(8 * 2 * model, rel=0.03)  # with the letters' envelopes
    assert result.bytes["bytes_up"] > sum(row["bytes_up"] for row in result.metrics) + 8 * model * 0.9


# ---------------------------------------------------------------------- crashes and engines


def _small(name: str) -> tuple[Any, Any]:
    data = islands((12, 16, 9, 14, 11, 13))
    job = atoll.Training(
        model=Linear(4, 3),
        algorithm=Scaffold(lr=0.05, epochs=1) if name not in ("DefKT", "CFL") else FedAvg(lr=0.05),
        topology=ALL_AT_ONCE[name],
        selection=atoll.Everyone(),
        rounds=3,
        evaluation=atoll.Evaluation(every=2, clients=-1),
    )
    return job, data


@pytest.mark.every(3)
@TOPOLOGIES
def test_a_killed_run_resumes_to_the_bit(name: str, tmp_path: Any):
    job, data = _small(name)
    killed_training(job, data, tmp_path, points=6)


@pytest.mark.network
@pytest.mark.every(3)
@TOPOLOGIES
def test_engines_agree(name: str):
    job, data = _small(name)
    one = atoll.simulate(job, data, engine="inline", seed=4)
    for engine in ("batched", "processes"):
        other = atoll.simulate(job, data, engine=engine, seed=4, workers=2)
        np.testing.assert_allclose(flat(other.params), flat(one.params), rtol=1e-9, atol=1e-12)
        assert [r["bytes_up"] for r in other.metrics] == [r["bytes_up"] for r in one.metrics]


# ---------------------------------------------------------------------- members, clusters, distillation


def test_a_newcomer_begins_with_its_neighbours_model():
    start = {"lr": 1e-9, "steps": 1, "batch_size": None}
    schedule = Membership(joins=((3, 4),), leaves=((0, 6),))
    result = on_quadratics(FedAvg(**FULL), Gossip(graph=Complete(), members=schedule), rounds=8)
    rows = list(result.metrics)
    assert [row["members"] for row in rows] == [9, 9, 9, 10, 10, 9, 9, 9]
    assert [row["joined"] for row in rows] == [0, 0, 0, 1, 0, 0, 0, 0]
    assert rows[-1]["consensus"] < 1e-12  # a complete graph: newcomers are no further off than anyone
    still = on_quadratics(FedAvg(**start), Gossip(graph=Complete(), members=schedule), rounds=4)
    assert np.abs(still.params["w"]).max() < 1e-6


def test_clients_that_want_different_things_are_parted():
    draw = np.random.default_rng(0)
    truth = draw.normal(size=(5, 1))
    parts = {}
    for k in range(8):
        x = draw.normal(size=(40, 5))
        parts[f"c{k}"] = atoll.data.Dataset({"x": x, "y": x @ truth * (-1) ** k}, task="regression")
    data = atoll.data.Islands.from_datasets(parts)
    job = atoll.Training(
        model=Linear(5, 1),
        algorithm=FedAvg(lr=0.05, epochs=2),
        selection=atoll.Everyone(),
        rounds=30,
        evaluation=atoll.Evaluation(every=30, clients=-1),
    )
    parted = atoll.simulate(job.replace(topology=CFL(settled=0.1, pulling=0.3)), data, engine="inline")
    assert parted.metrics[-1]["clusters"] == 2
    assert parted.metrics[-1]["own/loss"] < 1e-3 < parted.metrics[-1]["clients/loss"]
    personal = atoll.Evaluation(every=30, clients=-1, personal=True)
    ifca = job.replace(algorithm=algorithms.IFCA(base=job.algorithm), evaluation=personal)
    assert atoll.simulate(ifca, data, engine="inline").metrics[-1]["personal/loss"] < 1e-3


def test_bipartition_finds_the_two_directions():
    from atoll.learn.topology.clustered import bipartition

    draw = np.random.default_rng(5)
    ways = draw.normal(size=(2, 30))
    which = np.array([0, 1, 1, 0, 1, 0, 0])
    updates = ways[which] * draw.uniform(0.1, 3.0, size=(7, 1)) + 0.05 * draw.normal(size=(7, 30))
    first, second = bipartition(updates)
    assert (first, second) == ([0, 3, 5, 6], [1, 2, 4])


def test_slopes_of_mutual_learning_are_derivatives():
    from atoll.learn.topology.def_kt import _softmax, mutual_slopes

    draw = np.random.default_rng(6)
    one, two, y = draw.normal(size=(3, 4)), draw.normal(size=(3, 4)), np.array([0, 3, 1])
    other = _softmax(two)

    def loss(z: np.ndarray) -> float:
        p = _softmax(z)
        return float((-np.log(p[np.arange(3), y]) + (other * np.log(other / p)).sum(axis=1)).mean())

    slope = mutual_slopes(one, two, y)[0]
    for i, j in ((0, 0), (1, 2), (2, 3)):
        nudge = np.zeros_like(one)
        nudge[i, j] = 1e-6
        assert slope[i, j] == pytest.approx((loss(one + nudge) - loss(one - nudge)) / 2e-6, abs=1e-7)


def test_knowledge_transfer_learns_without_averaging():
    data = islands((40, 30, 35, 25))
    job = atoll.Training(
        model=Linear(4, 3),
        algorithm=FedAvg(lr=0.1, epochs=2),
        topology=DefKT(pairs=2),
        selection=atoll.Everyone(),
        rounds=10,
        evaluation=atoll.Evaluation(every=10),
    )
    row = atoll.simulate(job, data, engine="inline").metrics[-1]
    assert row["test/loss"] < 0.8 * np.log(3)
    assert row["selected"] == 4


# ---------------------------------------------------------------------- refusals


class _Secure(atoll.Reducer):
    secure = True


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"reducer": _Secure()}, "_Secure combines many replies, and Gossip has no server"),
        ({"uplink": (TopK(0.1),)}, "TopK acts between clients and a server, and Gossip has no server"),
        ({"algorithm": FedPAQ(lr=0.1)}, "QSGD of FedPAQ acts between clients and a server"),
        (
            {"aggregation": atoll.aggregation.EqualWeights()},
            "Gossip weights neighbours' states by its graph, and EqualWeights uses another rule",
        ),
        ({"algorithm": SufficientStatistics()}, "SufficientStatistics adds up what all clients sent"),
        (
            {"topology": Gossip(graph=EdgeList(((0, 1), (2, 3))))},
            "falls into 2 parts: client-0, client-1; client-2, client-3",
        ),
        ({"topology": Gossip(graph=TimeVarying(), compress=TopK(0.1))}, "changing set of neighbours"),
        (
            {"topology": RandomWalk(), "algorithm": algorithms.VRLSGD(steps=2)},
            "VRLSGD needs every client in every round",
        ),
        ({"topology": RandomWalk(tokens=2), "algorithm": Walkman()}, r"made for 1 token\(s\), but tokens=2"),
        (
            {"topology": RandomWalk(), "selection": atoll.Uniform(2)},
            "RandomWalk determines itself which nodes are visited",
        ),
        (
            {"topology": CFL(), "aggregation": atoll.aggregation.EqualWeights()},
            "averages the members of a cluster by examples",
        ),
        ({"topology": CFL(), "algorithm": algorithms.SignSGD()}, "does not reply with the mean update"),
        ({"topology": Cooperative(), "selection": atoll.Uniform(2)}, "mix with all their members"),
        (
            {"topology": DefKT(), "algorithm": algorithms.OutputPerturbation(base=FedAvg(), tau=1.0, sigma=1.0)},
            "distil on its own rows without noise",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_before_anyone_is_contacted(changes: dict[str, Any], match: str):
    parts = {"topology": Gossip(graph=Ring()), "algorithm": FedAvg(lr=0.1), "selection": atoll.Everyone(), **changes}
    asked: list[Any] = []

    def run() -> None:
        job = atoll.Training(model=Linear(4, 3), rounds=2, callbacks=(asked.append,), **parts)
        atoll.simulate(job, islands((9, 9, 9, 9)), engine="inline")

    with pytest.raises(CompositionError, match=match) as caught:
        run()
    assert caught.value.remedy
    assert not asked


def test_models_without_class_scores_do_not_distil():
    job = atoll.Training(
        model=Quadratic(20), algorithm=FedAvg(**FULL), topology=DefKT(), selection=atoll.Everyone(), rounds=1
    )
    with pytest.raises(CompositionError, match="distils class probabilities"):
        atoll.simulate(job, quadratics(), engine="inline")


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Gossip(mixing=0), "mixing=0"),
        (lambda: Gossip(gamma=0.0), r"gamma=0\.0"),
        (lambda: Gossip(gamma=0.5), r"gamma=0\.5 without a compressor"),
        (lambda: Gossip(share="all"), "share='all'"),  # type: ignore[arg-type]
        (lambda: Hierarchical(every=0), "every=0"),
        (lambda: Hierarchical(groups=0), "groups=0"),
        (lambda: Hierarchical(groups=[0, 0, 1]), "lists of positions such as"),
        (lambda: Hierarchical(groups=1.5), "groups=1.5"),
        (lambda: Hierarchical(groups=[[0.5], [1]]), "lists of positions such as"),
        (lambda: Hierarchical(groups=((0, 1), (1,))), "put each client into one group"),
        (lambda: ClusteredGossip(mixing=0), "mixing=0"),
        (lambda: Cooperative(every=0), "every=0"),
        (lambda: RandomWalk(tokens=0), "tokens=0"),
        (lambda: DefKT(pairs=0), "pairs=0"),
        (lambda: CFL(settled=1.0, pulling=0.5), "settled"),
        (lambda: Walkman(rho=0.0), r"rho=0\.0"),
        (lambda: algorithms.IFCA(base=FedAvg(), clusters=1), "clusters=1"),
    ],
)
def test_settings_that_cannot_be_are_refused(make: Any, match: str):
    with pytest.raises(AtollError, match=match):
        make()


def test_a_token_waits_for_a_node_that_is_silent():
    seconds = np.ones(10)
    seconds[[2, 5, 7]] = np.inf  # never answer
    job = atoll.Training(
        model=Quadratic(20),
        algorithm=FedAvg(**FULL),
        topology=RandomWalk(graph=Complete(), tokens=6),
        selection=atoll.Everyone(),
        rounds=12,
        evaluation=atoll.Evaluation(every=12),
    )
    rows = atoll.simulate(job, quadratics(), engine="inline", devices=Fixed(seconds, notice=2.0), seed=1).metrics
    visits = [row["replied"] for row in rows]
    assert visits[0] > 0
    assert visits == sorted(visits, reverse=True)  # tokens gather where nobody answers, and none is doubled
    assert visits[-1] == 0


def test_some_nodes_may_sleep():
    job = atoll.Training(
        model=Quadratic(20),
        algorithm=FedAvg(**FULL),
        topology=Gossip(graph=Complete()),
        selection=atoll.Uniform(4),
        rounds=20,
        evaluation=atoll.Evaluation(every=20),
    )
    result = atoll.simulate(job, quadratics(), engine="inline", seed=1)
    assert [row["replied"] for row in result.metrics] == [4] * 20
    assert gap(result.params) < 0.5 * gap({"w": np.zeros(20)})


@pytest.mark.slow
def test_random_k_gossips_too():
    result = on_quadratics(FedAvg(**FULL), Gossip(graph=Complete(), compress=RandomK(0.25), gamma=0.5, mixing=4), 10)
    assert gap(result.params) < 0.5 * gap({"w": np.zeros(20)})
