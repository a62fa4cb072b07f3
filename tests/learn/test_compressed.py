"""Laws of the compressed methods: what they are without compression, where they end, and what they send."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll import pacing, topology
from atoll.algorithms import (
    ADIANA,
    DIANA,
    QSVRG,
    DeepGradientCompression,
    FedAC,
    FedAQ,
    FedAvg,
    FedCOMGATE,
    FedPAQ,
    MemSGD,
    QuantisedSGD,
    Scaffold,
    SignSGD,
    SketchedSGD,
    SparseTernary,
    TwoWaySGDM,
)
from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.facets import facet
from atoll.core.requests.stage import Estimated, Identity, StageContext, WithMemory
from atoll.devices import safa
from atoll.learn.algorithm import Compressing
from atoll.models.quadratic import Quadratic, minimiser, quadratics
from atoll.stages import DGC, QSGD, STC, Clip, CountSketch, ErrorFeedback, OptimalSparse, RandomK, Sign, Threshold, TopK

FULL = {"batch_size": None}
NOTHING = Identity()


def run(algorithm, rounds=5, engine="inline", data=None, **more):
    data = data or quadratics(6, 8)
    model = Quadratic(int(data.shard(0).x.shape[1]))
    at_the_end = {"evaluation": atoll.Evaluation(every=rounds)} if rounds > 50 else {}
    job = atoll.Training(
        model=model, algorithm=algorithm, rounds=rounds, **{"selection": atoll.Everyone(), **at_the_end, **more}
    )  # fmt: skip
    return atoll.simulate(job, data, engine=engine, seed=0)


def same(one, other, tolerance=1e-12):
    np.testing.assert_allclose(run(one).params["w"], run(other).params["w"], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("compressed", "plain"),
    [
        (FedPAQ(lr=0.02, steps=5, compressor=NOTHING, **FULL), FedAvg(lr=0.02, steps=5, **FULL)),
        (QuantisedSGD(lr=0.02, compressor=NOTHING), FedAvg(lr=0.02, steps=1, **FULL)),
        (DIANA(lr=0.02, compressor=NOTHING, a=0.5), FedAvg(lr=0.02, steps=1, **FULL)),
        (MemSGD(lr=0.02, steps=5, compressor=TopK(1.0), **FULL), FedAvg(lr=0.02, steps=5, **FULL)),
        (TwoWaySGDM(lr=0.02, momentum=0.0, compressor=NOTHING, down=NOTHING), FedAvg(lr=0.02, steps=1, **FULL)),
        (QSVRG(lr=0.02, period=1, compressor=NOTHING), FedAvg(lr=0.02, steps=1, **FULL)),
        (DeepGradientCompression(lr=0.02, fraction=1.0, momentum=0.0), FedAvg(lr=0.02, steps=1, **FULL)),
        (DeepGradientCompression(lr=0.02, fraction=1.0, momentum=0.9), FedAvg(lr=0.02, steps=1, **FULL)),
        (SketchedSGD(lr=0.02, momentum=0.0, keep=8), FedAvg(lr=0.02, steps=1, **FULL)),
        (FedAQ(lr=0.02, steps=5, mu=0.5, compressor=NOTHING, **FULL), FedAC(lr=0.02, steps=5, mu=0.5, **FULL)),
        (FedAQ(lr=0.02, steps=5, mu=0.5, variant="II", compressor=NOTHING, **FULL), FedAC(lr=0.02, steps=5, mu=0.5, variant="II", **FULL)),
        (FedAQ(lr=0.02, steps=5, alpha=1.0, beta=1.0, gamma=0.02, compressor=NOTHING, **FULL), FedAvg(lr=0.02, steps=5, **FULL)),
        (FedAQ(lr=0.02, steps=5, alpha=1.0, beta=1.0, gamma=0.02, eval_point="w", **FULL), FedPAQ(lr=0.02, steps=5, **FULL)),
    ],
    ids=lambda a: type(a).__name__,
)  # fmt: skip
def test_without_compression_it_is_its_base(compressed, plain):
    """With masking and everything sent, DGC forgets its momentum: it is SGD. FedAQ with alpha = beta = 1, gamma = eta is FedPAQ."""
    same(compressed, plain)


def test_deep_gradient_compression_without_momentum_is_error_feedback():
    one = run(FedAvg(lr=0.02, steps=1, **FULL), uplink=[DGC(0.3, momentum=0.0)]).params["w"]
    other = run(FedAvg(lr=0.02, steps=1, **FULL), uplink=[ErrorFeedback(TopK(0.3))]).params["w"]
    np.testing.assert_allclose(one, other, rtol=1e-12)


def test_deep_gradient_compression_step_by_step():
    """Momentum correction, clipping, masking and warm-up, written out."""
    stage, rng = DGC(0.25, momentum=0.5, clip=2.0, warmup=3), np.random.default_rng(0)
    assert [round(DGC(0.001, warmup=4).share(i), 4) for i in range(6)] == [0.25, 0.0629, 0.0158, 0.004, 0.001, 0.001]
    u = v = np.zeros(8)
    memory = facet(stage, WithMemory).fresh({"w": np.zeros(8)})
    for _ in range(5):
        g = rng.normal(size=8) * 2
        sent, memory = facet(stage, WithMemory).remember({"w": g}, memory, StageContext.of(Rng.of(0)))
        u = 0.5 * u + g * min(1.0, 2.0 / np.linalg.norm(g))
        v = v + u
        top = np.argsort(-abs(v))[:2]
        got = stage.decode(sent, None, 1)["w"]
        np.testing.assert_allclose(got[top], v[top])
        assert np.count_nonzero(got) == 2
        u[top] = v[top] = 0.0
        np.testing.assert_allclose(memory["u"], u)
        np.testing.assert_allclose(memory["v"], v)


@pytest.mark.slow
def test_diana_learns_the_gradients_at_the_optimum_and_direct_compression_stalls():
    """Specification of the survey, section 8.3: direct compression stalls, DIANA reaches 0 and |h_i - grad f_i(x*)| = 2e-14."""
    data = quadratics()
    best, _ = minimiser(data)
    matrix = np.mean([np.asarray(data.shard(k).x) for k in range(10)], axis=0)
    shifts: dict[str, np.ndarray] = {}

    def gap(params):
        return 0.5 * (params["w"] - best) @ matrix @ (params["w"] - best)

    from atoll.core.world import World
    from atoll.engines import Inline

    job = atoll.Training(
        model=Quadratic(20),
        algorithm=DIANA(lr=1 / 28, compressor=RandomK(0.25)),
        selection=atoll.Everyone(),
        rounds=400,
        evaluation=atoll.Evaluation(every=400),
    )
    engine = Inline()
    world = World(data, engine)
    learner = job.learner(data)
    world.registry.update({learner.train.name: learner.train, learner.measure.name: learner.measure})
    from atoll.core.federation.federation import run_program
    from atoll.core.time.clock import run as run_clock

    result, fed = run_clock(run_program(world, job.program(data, learner)))
    slot = f"main//{learner.train.name}/train"
    for k in range(10):
        shifts[str(k)] = engine.host.store.get(slot, k)["gradient"]["0"]["shift"]["w"]
        shard = data.shard(k)
        np.testing.assert_allclose(shifts[str(k)], np.asarray(shard.x) @ best - np.asarray(shard.y), atol=1e-5)
    assert gap(result.params) < 1e-12
    direct = run(QuantisedSGD(lr=1 / 28, compressor=RandomK(0.25)), rounds=60, data=data)
    assert gap(direct.params) > 0.1
    del fed


@pytest.mark.slow
def test_diana_meets_a_nonsmooth_regulariser():
    """With an L1 norm it reaches the point that proximal gradient descent reaches."""
    data, lr, l1 = quadratics(6, 8), 0.06, 1.5
    matrix = np.mean([np.asarray(data.shard(k).x) for k in range(6)], axis=0)
    target = np.mean([np.asarray(data.shard(k).y) for k in range(6)], axis=0)
    x = np.zeros(8)
    for _ in range(4000):
        z = x - 0.1 * (matrix @ x - target)
        x = np.sign(z) * np.maximum(abs(z) - 0.1 * l1, 0)
    assert 0 < np.count_nonzero(x) < 8
    found = run(DIANA(lr=lr, compressor=RandomK(0.5), l1=l1), rounds=200, data=data).params["w"]
    np.testing.assert_allclose(found, x, atol=1e-4)
    found = run(ADIANA(mu=1.0, smoothness=10.0, omega=1.0, clients=6, compressor=RandomK(0.5), l1=l1), 400, data=data)
    np.testing.assert_allclose(found.params["w"], x, atol=2e-2)


def test_adianas_numbers():
    """The formulas of the survey, section 8.3 of its specification, at omega = 3, N = 10, mu = 0.1, L = 10."""
    s = ADIANA().settings()
    assert s["p"] == pytest.approx(1 / 8)
    assert s["eta"] == pytest.approx(min(0.05, 10 / (64 * 3 * (2 * s["p"] * 4 + 1) ** 2 * 10)))
    assert s["t1"] == pytest.approx(min(0.25, np.sqrt(s["eta"] * 0.1 / s["p"])))
    assert (s["t2"], s["b"]) == (0.5, pytest.approx(1 - s["gam"] * 0.1))
    assert s["gam"] == pytest.approx(s["eta"] / (2 * (s["t1"] + s["eta"] * 0.1)))


def test_error_feedback_loses_nothing():
    """What was sent and what is left over add up to what was given, and the residual is bounded: ``||e||^2 <= 4 (1 - d)/d^2 max ||x||^2``."""
    rng = np.random.default_rng(0)
    for inner in (TopK(0.2), Sign("model"), STC(0.2), RandomK(0.2, scaled=False)):
        stage = ErrorFeedback(inner)
        memory, given, got, largest = (
            facet(stage, WithMemory).fresh({"w": np.zeros(20)}),
            np.zeros(20),
            np.zeros(20),
            0.0,
        )
        for i in range(200):
            x = rng.normal(size=20)
            largest = max(largest, float(x @ x))
            sent, memory = facet(stage, WithMemory).remember({"w": x}, memory, StageContext.of(Rng.of(i)))
            given, got = given + x, got + stage.decode(sent, None, 1)["w"]
            np.testing.assert_allclose(got + memory["residual"]["w"], given, atol=1e-5)
            delta = facet(inner, Estimated).delta({"w": x})
            assert float(memory["residual"]["w"] @ memory["residual"]["w"]) <= 4 * (1 - delta) / delta**2 * largest


def test_sketches_find_the_heavy_entries_of_a_sum_and_grow_with_the_logarithm():
    rng, n, d, k = np.random.default_rng(0), 20, 4000, 10
    heavy = rng.choice(d, k, replace=False)
    rows = rng.normal(size=(n, d)) * 0.05
    rows[:, heavy] += rng.choice([-3.0, 3.0], size=k)
    stage = CountSketch.sized(d, k)
    public = stage.public(Rng.of(0))
    total = sum(stage.encode({"w": row}, StageContext.of(Rng.of(i), public))["table"] for i, row in enumerate(rows))
    like = stage.encode({"w": rows[0]}, StageContext.of(Rng.of(0), public))["like"]
    found = stage.decode({"like": like, "table": total}, public, n)["w"]
    assert set(np.argsort(-abs(found))[:k]) == set(heavy)
    sizes = [CountSketch.sized(m, k).wire_bits({"w": np.zeros(m, np.float32)}) for m in (1000, 1_000_000)]
    assert sizes[1] == 2 * sizes[0]


@pytest.mark.parametrize(
    ("algorithm", "per_round"),
    [
        (FedAvg(lr=0.1), 32), (FedPAQ(lr=0.1), 8), (FedCOMGATE(lr=0.1, steps=5), 8), (FedAC(lr=0.1), 64), (FedAQ(lr=0.1), 16),
        (FedAQ(lr=0.1, compressor=QSGD(7)), 8),
    ],
    ids=lambda a: type(a).__name__ if not isinstance(a, int) else str(a),
)  # fmt: skip
def test_bits_of_a_client_and_round_are_those_of_the_paper(algorithm, per_round):
    """Specification of FedAQ, A6: d times 32, 8, 8, 64, 16 (8 bits) and 8 (4 bits), beside 32 bits for a norm."""
    from atoll.learn.wrapped import dry_reply

    params = {"weight": np.zeros((784, 10), np.float32), "bias": np.zeros(10, np.float32)}
    d, reply = 7850, dry_reply(algorithm, params)
    bits = 0
    for aggregate in reply.values():
        stages = facet(algorithm, Compressing).uplink("train")
        bits += stages[0].wire_bits(aggregate.value) - 2 * 32 if stages else 32 * T.size(aggregate.value)
    assert bits == per_round * d


# Rounds to the target, bits an entry and parameters, and the uplink bits of one client that the paper prints (Specification of FedAQ, A10).
PRINTED = [
    (217, 32, 7840, "5.4e7"), (216, 8, 7840, "1.4e7"), (260, 8, 7840, "1.6e7"), (28, 64, 7840, "1.4e7"), (26, 16, 7840, "3.3e6"),
    (99, 16, 7840, "1.2e7"), (23, 32, 199210, "1.5e8"), (48, 8, 199210, "7.6e7"), (38, 8, 199210, "6.1e7"),
    (18, 64, 199210, "2.3e8"), (18, 16, 199210, "5.7e7"), (16, 8, 199210, "2.5e7"), (98, 32, 672212, "2.1e9"),
    (89, 8, 672212, "4.8e8"), (95, 8, 672212, "5.1e8"), (49, 64, 672212, "2.1e9"), (50, 16, 672212, "5.4e8"), (48, 8, 672212, "2.6e8"),
]  # fmt: skip


@pytest.mark.parametrize(("rounds", "bits", "d", "printed"), PRINTED)
def test_the_papers_bits_are_rounds_times_entries_times_bits(rounds, bits, d, printed):
    assert f"{rounds * bits * d:.1e}".replace("e+0", "e") == printed


def test_what_is_charged_is_what_is_sent():
    """The meter's bytes up are the packed form's, within the message's own header and padding."""
    data = quadratics(3, 200)
    plain, packed = (
        run(a, rounds=2, data=data).metrics[-1] for a in (FedAvg(lr=0.01, **FULL), FedPAQ(lr=0.01, **FULL))
    )
    assert plain["bytes_up"] / 3 > 8 * 200
    assert "bits_declared" not in plain
    assert packed["bits_declared"] == 3 * (8 * 200 + 32)
    assert 0 <= packed["bytes_up"] / 3 - packed["bits_declared"] / 3 / 8 <= 700
    # Clip before it leaves the form as it is; how many entries pass a threshold only the values tell
    clipped = run(FedAvg(lr=0.01, **FULL), rounds=1, data=data, uplink=[Clip(1.0), QSGD(127)]).metrics[-1]
    assert clipped["bits_declared"] == packed["bits_declared"]
    assert "bits_declared" not in run(FedAvg(lr=0.01, **FULL), rounds=1, data=data, uplink=[Threshold(0.1)]).metrics[-1]


EDGES = {"groups": 2}
PLACES = {
    # parts of the training, and bytes a round between edges and cloud
    "star": ({}, 0),
    "hierarchical": ({"topology": topology.Hierarchical(**EDGES, every=2)}, 2 * 1750),
    "in lockstep": ({"topology": topology.Hierarchical(**EDGES, every=2, lockstep=True)}, 2 * 1750),
    "clusters that gossip": ({"topology": topology.ClusteredGossip(**EDGES)}, 60),
    "CFL": ({"topology": topology.CFL(), "selection": atoll.Everyone()}, 0),
    "FedBuff": ({"pacing": pacing.FedBuff(buffer=3)}, 0),
    "FedAsync": ({"pacing": pacing.FedAsync()}, 0),
    "tiers": ({"pacing": pacing.Tiered(tiers=2, by="forecast")}, 0),
    "SAFA": ({"pacing": pacing.SAFA(), "selection": atoll.Everyone()}, 0),
    "regions": ({"topology": topology.Hierarchical(**EDGES), "pacing": pacing.HybridFL(deadline=1e6)}, 2 * 1900),
    "gossip": (
        {
            "topology": topology.Gossip(mixing=2, compress=QSGD(127), gamma=0.3),
            "uplink": (),
            "selection": atoll.Everyone(),
        },
        0,
    ),
}


@pytest.mark.parametrize("where", PLACES)
def test_declared_bits_are_within_what_is_measured_wherever_stages_act(where):
    """For every reply taken (in gossip: every message heard) 8 bits an entry and a norm of 32; the bytes above that are headers, and what edges send."""
    parts, between = PLACES[where]
    job = atoll.Training(
        model=Quadratic(200), algorithm=FedAvg(lr=0.01, **FULL), **{"selection": atoll.Uniform(4), "uplink": [QSGD(127)], "rounds": 3, **parts}
    )  # fmt: skip
    rows = atoll.simulate(job, quadratics(8, 200), engine="inline", seed=0, devices=safa("kdd")).metrics
    bits, taken = sum(row["bits_declared"] for row in rows), sum(row["replied"] for row in rows)
    each = 8 * 200 + 32
    if where == "gossip":  # two neighbours, two steps; the rate that a node keeps is mixed too, in an array of its own
        each, taken = each + 8 + 32, 4 * taken
    assert bits == taken * each > 0
    over = sum(row["bytes_up"] for row in rows) - bits / 8
    head = 700 if where == "gossip" else 400  # a letter has an envelope, keys and a tag besides
    assert 0 <= over <= head * taken + 3 * between


def test_bits_that_the_stages_declare_are_found_once_a_form_and_phase(monkeypatch):
    from atoll.learn import context

    found = []
    monkeypatch.setattr(context, "declared_bits", lambda *given: found.append(given[3]) or 7)
    rows = run(FedPAQ(lr=0.01, **FULL), rounds=4, data=quadratics(3, 20)).metrics
    assert found == ["train"]
    assert [row["bits_declared"] for row in rows if "bits_declared" in row] == [21] * 4


def test_sign_votes_take_two_bits_an_entry_and_client():
    """Specification of the survey: 2Nd bits a round; the way down is one sign an entry because a step is ``lr`` times signs."""
    stage, value = Sign("model", scaled=False), {"w": np.random.default_rng(0).normal(size=1024)}
    assert stage.wire_bits(value) == 1024
    one = run(SignSGD(lr=0.01), data=quadratics(5, 8), rounds=6)
    other = run(SignSGD(lr=0.01), data=quadratics(5, 8), rounds=6, uplink=[stage], downlink=Sign("model"))
    np.testing.assert_allclose(one.params["w"], other.params["w"], atol=1e-7)


ANY = [
    FedAvg(lr=0.05, epochs=2), Scaffold(lr=0.05, epochs=2), FedPAQ(lr=0.05), MemSGD(lr=0.05), SparseTernary(lr=0.05), DIANA(lr=0.05),
    TwoWaySGDM(lr=0.01), QSVRG(lr=0.05, period=2), DeepGradientCompression(lr=0.05, fraction=0.1), FedAQ(lr=0.05, mu=0.5), FedCOMGATE(lr=0.05, steps=3),
    SketchedSGD(lr=0.05, columns=50), ADIANA(),
]  # fmt: skip


@pytest.mark.network
@pytest.mark.every(2)
@pytest.mark.parametrize("algorithm", ANY, ids=lambda a: type(a).__name__)
def test_every_engine_gives_the_same(algorithm):
    data = atoll.data.dirichlet(atoll.data.digits(), parties=5, alpha=0.5, seed=1)
    everyone = algorithm.card.everyone

    def once(engine):
        uplink = [] if facet(algorithm, Compressing).uplink("train") else [ErrorFeedback(TopK(0.2))]
        selection = atoll.Everyone() if everyone else atoll.Uniform(4)
        job = atoll.Training(
            model=atoll.models.linear(64, 10), algorithm=algorithm, uplink=uplink, rounds=3, selection=selection
        )
        return atoll.simulate(job, data, engine=engine, seed=2)

    one, other = once("inline"), once("processes")
    for name, leaf in one.params.items():
        np.testing.assert_allclose(other.params[name], leaf, rtol=1e-6, atol=1e-9)
    assert one.metrics.bytes_up == other.metrics.bytes_up


@pytest.mark.network
@pytest.mark.every(2)
@pytest.mark.parametrize("stage", [QSGD(7), ErrorFeedback(TopK(0.1)), OptimalSparse(1.0)], ids=repr)
@pytest.mark.parametrize("algorithm", [FedAvg(lr=0.05), Scaffold(lr=0.05)], ids=lambda a: type(a).__name__)
def test_blocks_of_pytorch_models_are_compressed_as_single_ones_are(algorithm, stage):
    torch = pytest.importorskip("torch")
    data = atoll.data.dirichlet(atoll.data.digits(), parties=6, alpha=0.5, seed=1)

    def model():
        return torch.nn.Sequential(torch.nn.Linear(64, 6), torch.nn.Tanh(), torch.nn.Linear(6, 10))

    def once(engine):
        job = atoll.Training(model=model, algorithm=algorithm, uplink=[stage], rounds=2, selection=atoll.Uniform(4))
        return atoll.simulate(job, data, engine=engine, seed=2)

    one, many = once("inline"), once("batched")
    # A difference in the last bit may move one entry by a level: what counts is that hardly any does.
    for name, leaf in one.params.items():
        assert np.mean(~np.isclose(many.params[name], leaf, rtol=2e-3, atol=2e-4)) < 0.05
    assert many.metrics.bytes_up == pytest.approx(one.metrics.bytes_up, rel=1e-3)


def test_a_method_without_sense_is_refused():
    from atoll.core.errors import ConfigError

    with pytest.raises(ConfigError, match=r"compressor='QSGD'.*use a stage"):
        FedPAQ(compressor="QSGD")
    with pytest.raises(ConfigError, match="TopK is biased"):
        QuantisedSGD(compressor=TopK(0.1))
    with pytest.raises(ConfigError, match=r"momentum=1\.0"):
        TwoWaySGDM(momentum=1.0)
    with pytest.raises(ConfigError, match="period=0"):
        QSVRG(period=0)
    with pytest.raises(ConfigError, match=r"l1=-1\.0"):
        DIANA(l1=-1.0)
    for biased in (
        lambda: DIANA(compressor=TopK(0.5), a=0.5),
        lambda: ADIANA(compressor=Sign()),
        lambda: QSVRG(compressor=STC(0.1)),
    ):
        with pytest.raises(
            ConfigError, match=r"(TopK|Sign|STC) is biased, but \w+ needs an unbiased compressor.*MemSGD"
        ):
            biased()
    with pytest.raises(ConfigError, match="RandomK is biased"):
        DIANA(compressor=RandomK(0.25, scaled=False), a=0.5)
