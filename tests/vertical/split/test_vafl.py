"""VAFL: synchronous where no host is slower, the optimum of a convex loss where some are, and noise that the ledger books."""

from __future__ import annotations

import asyncio
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Ledger
from atoll.core.requests.cohort import Community
from atoll.core.requests.island import Secret
from atoll.core.world import World
from atoll.engines import Inline
from atoll.testing import killed_and_resumed
from atoll.trees.objectives import LOGISTIC, TreeLoss
from atoll.vertical import VAFL, MaxNorm, SplitNet, SunModules, Vertical, VerticalPrediction, read_leaks
from atoll.vertical.model import GuestRows
from atoll.vertical.split.networks import Layers, SegmentOptimizer
from atoll.vertical.split.vafl import perturb
from tests.support.vertical_toys import as_parties, draw

torch = pytest.importorskip("torch")
SMALL = {"hidden": (5,), "width": 4, "top": (3,), "epochs": 2, "batch": 50}


def train(parties, model, **settings):
    return atoll.simulate(Vertical(model=model, **settings), parties, engine="inline", progress=False, secret_seed=1)


@pytest.mark.parametrize("pace", [{}, pytest.param({"host-1": 2.5, "host-2": 2.5}, marks=pytest.mark.slow)])
def test_without_delay_it_is_the_synchronous_network(pace):
    parties, _ = as_parties(draw(402, 400), 2)
    settings = {**SMALL, "audit": ["direction", "completion"], "defence": [SunModules(distance=0.1)]}
    one, other = (train(parties, model) for model in (SplitNet(**settings), VAFL(**settings, pace=pace)))
    np.testing.assert_array_equal(one.predictions["federated"], other.predictions["federated"])
    assert read_leaks(one) == read_leaks(other)


@given(
    st.lists(st.sampled_from([1.0, 1.5, 2.0, 3.0, 0.5]), min_size=1, max_size=4),
    st.integers(20, 200),
    st.integers(1, 3),
)
def test_hosts_arrive_by_the_clock(paces, rows, epochs):
    """Against a simulation that asks at each instant who is done."""
    hosts = [f"h{k}" for k in range(len(paces))]
    model = VAFL(pace=dict(zip(hosts, paces, strict=True)), epochs=epochs, batch=40)
    found = list(model.arrivals(hosts, rows))
    horizon = epochs * -(-rows // 40) * min(paces)
    expected = Counter()
    for k, pace in enumerate(paces):
        step = 0
        while (step + 1) * pace <= horizon:
            expected[(Fraction((step + 1) * pace), step, k)] += 1
            step += 1
    assert Counter((one.time, one.step, k) for one in found for k in one.hosts) == expected
    assert [(one.time, one.step) for one in found] == sorted({(time, step) for time, step, _ in expected})


class LinearVAFL(VAFL):
    """A sum of linear bottoms: least squares, a convex loss."""

    precision = np.float64

    def bottom(self, columns, number=0):
        return Layers(columns, (1,))

    def tops(self, parties, outputs):
        return Layers(parties, ()), Layers(parties, (1,))

    def segment(self, layers, *name):
        made = super().segment(layers, *name)
        if name[0] == "head":
            made.restore({"weights": np.array([1.0] * layers.inputs + [0.0]), "memory": {}})
            made.optimizer = SegmentOptimizer("sgd", 0.0)
        return made


@pytest.mark.parametrize(
    "pace", [{"host-2": 2.5}, pytest.param({"host-1": 3.0, "host-2": 2.0}, marks=pytest.mark.slow)]
)
def test_with_delays_it_finds_the_optimum_of_a_convex_loss(pace):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 6)) @ (np.eye(6) + 0.1)
    y = x @ rng.normal(size=6) + rng.normal(size=200)
    parts = {"guest": x[:, :2], "host-1": x[:, 2:4], "host-2": x[:, 4:]}
    parties = {name: {"id": np.arange(200), **{f"{name}{j}": part[:, j] for j in range(2)}} for name, part in parts.items()}  # fmt: skip
    parties["guest"]["y"] = y
    model = LinearVAFL(width=1, epochs=100, batch=200, optimizer="sgd", rate=0.5, pace=pace)
    told = train(parties, model, test=0.0).predictions
    at = told["id"].astype(int)
    ones = np.column_stack([x, np.ones(len(x))])
    optimum = (ones @ np.linalg.lstsq(ones, y, rcond=None)[0])[at]
    np.testing.assert_allclose(told["federated"][:, 0], optimum, rtol=0, atol=1e-6)


def test_the_guest_goes_on_with_what_it_has_of_a_slow_host():
    """Three steps of a fast host, whose partner sends one at the third: what the top joins, by hand."""
    fast, slow = (np.random.default_rng(k).normal(size=(20, 4)).astype(np.float32) for k in (1, 2))
    messages = {"a": [{"step": k, "cut": fast + k} for k in range(3)], "b": [{"step": 0, "cut": slow}]}
    sent, joined = [], []

    class Peers:
        names = ("a", "b")

        async def recv(self, role):
            return messages[role].pop(0)

        async def send(self, role, message):
            sent.append((role, message["step"]))

        async def broadcast(self, message, roles):
            assert (message, roles) == ({"hosts": ["a", "b"]}, ["a", "b"])

    class Noting(VAFL):
        def segment(self, layers, *name):
            made = super().segment(layers, *name)
            if name[0] == "trunk":
                run = made.layers.run
                made.layers = type("Noted", (), {"run": lambda _, w, x: (joined.append(x.detach().numpy()), run(w, x))[1], "packed": lambda _: layers.packed()})()  # fmt: skip
            return made

    x = np.random.default_rng(0).normal(size=(20, 3))
    rows = GuestRows(x, (x[:, 0] > 0).astype(float), TreeLoss(LOGISTIC))
    model = Noting(**{**SMALL, "epochs": 3, "batch": 20}, pace={"b": 3.0})
    asyncio.run(model.train_guest(rows, Peers(), ["a", "b"], secret=Secret(0)))
    assert sent == [("a", 0), ("a", 1), ("b", 0), ("a", 2)]
    orders = [at for _, at in model.batches(20).from_step(0)]
    # Step 1 of b comes with the rows of step 0, at which the last that a has sent of all rows is its second.
    last = np.empty((20, 4), np.float32)
    last[orders[1]] = fast + 1
    late = np.empty((20, 4), np.float32)
    late[orders[0]] = slow
    zeros = np.zeros((20, 4))
    expected = [(fast, zeros), (fast + 1, zeros), (last[orders[0]], slow), (fast + 2, late[orders[2]])]
    for found, parts in zip(joined, expected, strict=True):
        np.testing.assert_array_equal(found[:, 4:], np.concatenate(parts, axis=1))


def test_noise_is_booked_and_in_what_the_parties_learn(tmp_path):
    parties, _ = as_parties(draw(402, 400))
    job = Vertical(model=VAFL(**SMALL, noise=2.0, clip=0.5))
    more = {"engine": "inline", "progress": False, "secret_seed": 1, "ledger": tmp_path / "spent.jsonl"}
    result = atoll.simulate(job, parties, results=tmp_path / "kept", **more)
    few = {**parties, "guest": {name: values[:30] for name, values in parties["guest"].items()}}
    found = atoll.simulate(VerticalPrediction(), few, results=tmp_path / "kept", **more).outcome
    lines = [line for line in Ledger(tmp_path / "spent.jsonl") if line["kind"] == "gaussian"]
    assert [line["party"] for line in lines] == ["host-1"] * 3
    assert [line["count"] for line in lines] == [2 * result.rows["train"], result.rows["aligned"], 30]
    assert {(line["unit"], line["noise_multiplier"]) for line in lines} == {("example", 1.0)}
    assert "norm 0.5" in " ".join(result.learns["guest"])
    clean = result.predict(few)  # who has all parts at hand adds no noise
    assert np.abs(found.predictions - clean).max() > 0
    assert (train(parties, VAFL(**SMALL)).predictions["federated"] != result.predictions["federated"]).any()


@given(st.integers(1, 30), st.floats(0.01, 10), st.floats(0.0, 5.0), st.integers(0, 10**6))
def test_perturbed_rows_are_clipped_and_their_noise_is_as_large_as_said(rows, clip, noise, seed):
    h = torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, 8)) * 3)
    shown = perturb(h, noise, clip, Secret(seed))
    if not noise:
        assert shown is h
        return
    again = torch.from_numpy(Secret(seed).normal(rows * 8)).view(rows, 8) * noise * clip
    clean = (shown - again).norm(dim=1)
    assert bool((clean <= clip * (1 + 1e-9) + 1e-9).all())
    small = h.norm(dim=1) <= clip
    np.testing.assert_allclose((shown - again)[small], h[small], rtol=1e-9, atol=1e-9)


def test_killed_and_resumed_it_is_the_same(tmp_path):
    parties, _ = as_parties(draw(402, 300), 2)
    model = VAFL(**{**SMALL, "checkpoint_every": 3}, pace={"host-1": 2.5}, noise=0.1, defence=[MaxNorm()])
    ready = Vertical(model=model).prepare(Community(parties))

    async def program(fed):
        return await ready.program(fed)

    program.tasks = ready.tasks

    def world(folder, resume):
        return World(Community(parties), Inline(), folder=folder, resume=resume, secret_seed=1)

    found = killed_and_resumed(world, program, tmp_path, points=2).result
    assert found["guest"]["rows"]["aligned"] > 100


@pytest.mark.parametrize(
    ("made", "error", "match"),
    [
        (lambda: VAFL(pace={"shop": 0.0}), ConfigError, "pace="),
        (lambda: VAFL(noise=-1.0), ConfigError, "noise="),
        (lambda: VAFL(clip=0.0), ConfigError, "clip="),
        (lambda: VAFL(shape="u"), CompositionError, "shape='u'"),
        (lambda: VAFL(pace={"shop": 2.0}).paces(["host"]), ConfigError, "pace of 'shop'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(made, error, match):
    with pytest.raises(error, match=match):
        made()
