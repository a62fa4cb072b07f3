"""SFHTL: split gradients are those of the whole loss, labels spread over a graph, and each party predicts alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.errors import AtollError
from atoll.core.requests.cohort import Community
from atoll.core.world import World
from atoll.engines import Inline
from atoll.testing import killed_and_resumed
from atoll.vertical import SFHTL, Vertical, VerticalPrediction
from atoll.vertical.model import ColumnScales
from atoll.vertical.transfer.representation import Representation
from atoll.vertical.transfer.sfhtl import propagate_labels
from tests.support.transfer_toys import cut_people, cut_rows, draw_people, draw_rows, train_both

drawn = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10**6), "shared": st.integers(1, 8), "alone": st.tuples(st.integers(1, 6), st.integers(1, 6)),
        "columns": st.tuples(st.integers(1, 3), st.integers(1, 3)), "outputs": st.sampled_from([1, 3]), "labelled": st.sampled_from([1.0, 0.6]),
    }
)  # fmt: skip


class WholeLoss:
    """The same loss written down once, over all rows in one place; PyTorch finds its gradients: the oracle."""

    def __init__(self, model, rows, x, others):
        import torch

        self.torch, self.model, self.n, self.outputs = torch, model, len(x), rows.objective.outputs
        labels = np.concatenate([rows.targets, others[0].targets])
        self.known = torch.from_numpy(~np.isnan(labels))
        codes = torch.from_numpy(np.nan_to_num(labels)).long()
        self.truth = (
            codes[:, None].double() if self.outputs == 1 else torch.nn.functional.one_hot(codes, self.outputs).double()
        )
        self.flat, self.inputs, self.guesses = [], [], None
        for party, table in enumerate((np.concatenate([rows.x, others[0].x]), np.concatenate([x, others[1]]))):
            net = Representation.begin(ColumnScales.of(table), model.width, np.random.default_rng([model.seed, party]))
            self.flat += [torch.tensor(net.encode, requires_grad=True), torch.tensor(net.decode, requires_grad=True)]
            self.inputs.append(torch.from_numpy(net.read(table)))
        self.flat.append(torch.zeros(model.width + 1, self.outputs, dtype=torch.float64, requires_grad=True))

    def one(self, points):
        return self.torch.column_stack([points, self.torch.ones(len(points), dtype=self.torch.float64)])

    def entropy(self, points, shares):
        """The loss of each row, for shares of the classes."""
        scores, functional = self.one(points) @ self.flat[4], self.torch.nn.functional
        if self.outputs == 1:
            return functional.binary_cross_entropy_with_logits(scores, shares, reduction="none")[:, 0]
        return functional.cross_entropy(scores, shares, reduction="none")

    def guess(self, u):
        """Pseudo-labels of the rows without labels, and how certain they are."""
        known, truth = self.known.numpy(), self.truth.numpy()
        two = np.concatenate([1 - truth, truth], axis=1) if self.outputs == 1 else truth
        points = [u[0].detach().numpy()[~known], u[1].detach().numpy()[self.n :]]
        found = propagate_labels(
            u[0].detach().numpy()[known], two[known], np.concatenate(points), self.model.neighbours
        )
        certain = 1 + (found * np.log(np.maximum(found, 1e-300))).sum(axis=1) / np.log(found.shape[1])
        shares = found[:, 1:] if self.outputs == 1 else found
        self.guesses = self.torch.from_numpy(shares), self.torch.from_numpy(certain), len(points[0])

    def loss(self, u):
        model, n, known, truth = self.model, self.n, self.known, self.truth
        seen = u[0].detach()
        made = self.torch.tanh(self.one(self.one(seen[n:]) @ self.flat[3]) @ self.flat[2])
        total = 0.0
        groups = (
            (u[0], truth, known, 1.0),
            (u[1][:n], truth[:n], known[:n], 1.0),
            (made, truth[n:], known[n:], model.made),
        )
        for points, shares, has, weight in groups:
            total = total + weight * self.entropy(points, shares)[has].sum() / max(1, int(has.sum()))
        if self.guesses is not None:
            shares, certain, few = self.guesses
            for points, part in ((u[0][~known], slice(None, few)), (u[1][n:], slice(few, None))):
                total = total + model.pseudo * (certain[part] * self.entropy(points, shares[part])).sum() / max(
                    1, len(points)
                )
        total = total + model.align * ((u[0][:n] - u[1][:n]) ** 2).sum(dim=1).mean()
        for k in range(2):
            back = self.inputs[k][:, :-1] - self.one(u[k]) @ self.flat[2 * k + 1]
            total = total + model.restore * (back**2).mean()
        back = self.inputs[1][:n, :-1] - self.one(seen[:n]) @ self.flat[3]
        squares = sum((self.flat[k] ** 2).sum() for k in (0, 2, 4))
        return total + model.restore * (back**2).mean() + model.penalty / 2 * squares

    def train(self):
        speeds = [0.0] * 5
        for step in range(self.model.steps):
            u = [self.torch.tanh(z @ w) for z, w in zip(self.inputs, self.flat[:4:2], strict=True)]
            if step and step % self.model.refresh == 0:
                self.guess(u)
            gradients = self.torch.autograd.grad(self.loss(u), self.flat)
            speeds = [self.model.momentum * speed + g for speed, g in zip(speeds, gradients, strict=True)]
            moved = [value - self.model.rate * speed for value, speed in zip(self.flat, speeds, strict=True)]
            self.flat = [value.detach().requires_grad_() for value in moved]
        return [value.detach().numpy() for value in self.flat]


@settings(max_examples=6, deadline=None)
@given(drawn)
def test_split_gradients_are_those_of_the_whole_loss(table):
    rows, x, others = draw_rows(**table)
    if np.isnan(np.concatenate([rows.targets, others[0].targets])).all():
        return
    model = SFHTL(width=2, steps=5, rate=0.2, refresh=2, neighbours=3)
    guest, host, _ = train_both(model, rows, x, others)
    found = [
        guest["net"]["encode"],
        guest["net"]["decode"],
        host["net"]["encode"],
        host["net"]["decode"],
        guest["head"],
    ]
    for mine, expected in zip(found, WholeLoss(model, rows, x, others).train(), strict=True):
        np.testing.assert_allclose(mine, expected, atol=1e-9)
    np.testing.assert_array_equal(guest["head"], host["head"])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 8), st.integers(2, 3), st.integers(1, 4))
def test_labels_spread_to_the_harmonic_solution(seed, known, unknown, classes, neighbours):
    """``F = P F`` with the known rows held has one solution where every point reaches a known one: ``(I - P_UU)^-1 P_UL Y``."""
    rng = np.random.default_rng(seed)
    points, fresh = rng.normal(size=(known, 2)), rng.normal(size=(unknown, 2))
    shares = np.eye(classes)[rng.integers(0, classes, known)]
    every, k = np.concatenate([points, fresh]), min(neighbours, known + unknown - 1)
    apart = ((fresh[:, None] - every[None]) ** 2).sum(axis=2)
    apart[np.arange(unknown), known + np.arange(unknown)] = np.inf
    near = np.argsort(apart, axis=1, kind="stable")[:, :k]
    chosen = np.take_along_axis(apart, near, axis=1)
    p = np.zeros_like(apart)
    np.put_along_axis(p, near, np.exp(-chosen / chosen.mean()), axis=1)
    p /= p.sum(axis=1, keepdims=True)
    found = propagate_labels(points, shares, fresh, neighbours, iterations=3000)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    reaches = np.linalg.matrix_power(np.eye(unknown) + (p[:, known:] > 0), unknown) @ (p[:, :known] > 0).any(axis=1) > 0
    if reaches.all():
        exact = np.linalg.solve(np.eye(unknown) - p[:, known:], p[:, :known] @ shares)
        np.testing.assert_allclose(found, exact, atol=1e-4)
    else:
        np.testing.assert_allclose(found[~reaches], 1 / classes, atol=1e-9)


def test_each_party_predicts_alone_and_better_than_from_the_shared_rows():
    linear = pytest.importorskip("sklearn.linear_model")
    metrics = pytest.importorskip("sklearn.metrics")
    model, gains = SFHTL(steps=100), []
    for seed in range(8):
        rows, x, others, truth = cut_rows(draw_people(seed, rows=300), shared=20)
        _, host, _ = train_both(model, rows, x, others)
        alone = linear.LogisticRegression(max_iter=1000).fit(x, rows.targets).decision_function(others[1])
        found = [model.own_margins(host, {}, others[1])[:, 0], alone]
        gains.append(np.subtract(*(metrics.roc_auc_score(truth, one) for one in found)))
    assert np.mean(gains) > 0.03


def test_three_parties_train_and_predict(tmp_path):
    people = draw_people(0, rows=240, columns=4)
    names = list(people.about.features)
    owners = {"bank": names[:3], "shop": names[3:6], "mall": names[6:]}
    parties = atoll.data.transfer(people, parties=owners, overlap=0.3, labelled=0.8)
    job = Vertical(model=SFHTL(width=4, steps=30, refresh=10))
    result = atoll.simulate(job, parties, engine="inline", progress=False, results=tmp_path)
    assert set(result.scores) == {"test/alone/auc", "test/federated/auc"}
    assert result.predict(parties, unknown="guest").shape == (len(parties["bank"]),)
    for name in ("shop", "mall"):
        later = VerticalPrediction(target=name)
        found = atoll.simulate(later, parties, engine="inline", progress=False, results=tmp_path).outcome
        np.testing.assert_array_equal(found.predictions, result.predict_own(name, parties[name]))
    with pytest.raises(AtollError, match="target='mail'"):
        atoll.simulate(VerticalPrediction(target="mail"), parties, engine="inline", progress=False, results=tmp_path)


def test_killed_and_resumed_it_is_the_same(tmp_path):
    parties = cut_people(draw_people(1, rows=60, columns=2), overlap=0.4)
    ready = Vertical(model=SFHTL(width=2, steps=20, refresh=7)).prepare(Community(parties))

    async def program(fed):
        return await ready.program(fed)

    program.tasks = ready.tasks

    def world(folder, resume):
        return World(Community(parties), Inline(), folder=folder, resume=resume)

    assert killed_and_resumed(world, program, tmp_path, points=2).result["bank"]["rows"]["aligned"] == 24


BAD = [
    ("shop", "shared", lambda u: u[1:], "no 12 x 2 numbers 'shared' of 'shop'"),
    ("shop", "made", lambda u: 1.5 + u, "no 9 x 2 numbers 'made' of 'shop'"),
    ("shop", "own", lambda u: u.astype(np.float32), "no any x 2 numbers 'own' of 'shop'"),
    ("bank", "shared", lambda g: g * np.inf, "no 12 x 2 numbers 'shared' of 'bank'"),
    ("bank", "u", lambda u: u[:, :1], "no any x 2 numbers 'u' of 'bank'"),
    ("bank", "u", lambda u: u[:5], "5 representations of 'bank', fewer than shared rows"),
    ("bank", "head", lambda h: h[1:], "no 3 x any numbers 'head' of 'bank'"),
]  # fmt: skip


@pytest.mark.parametrize(("sender", "key", "make", "match"), BAD)
def test_what_no_party_sends_is_refused(sender, key, make, match):
    def change(me, message):
        return {**message, key: make(message[key])} if me == sender and key in message else message

    rows, x, others = draw_rows(0)
    with np.errstate(invalid="ignore"), pytest.raises(AtollError, match=match):
        train_both(SFHTL(width=2, steps=3), rows, x, others, change=change)


def test_settings_out_of_bounds_are_refused():
    for name, value in {
        "width": 0,
        "steps": 0,
        "rate": 0.0,
        "momentum": -0.1,
        "neighbours": 0,
        "refresh": 0,
        "seed": -1,
        "pseudo": -1.0,
    }.items():
        with pytest.raises(AtollError, match=f"{name}={value}"):
            SFHTL(**{name: value})
