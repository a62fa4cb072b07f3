"""FixMatch in a federation (Sohn et al. 2020): one client has labels, the others learn from their own sure guesses.

The global model guesses labels of weakly noised rows. Where it is surer than the threshold that the server sends, the guess is the target of the same row
under strong noise. Everything goes through the seam for losses; the server side is federated averaging.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import atoll
from atoll.testing import Timetable
from tests.support.scales import assert_true_bytes

ROUNDS, EPOCHS, BATCH, LR, TAU = 4, 2, 12, 1.0, 0.6


@dataclass(frozen=True, kw_only=True)
class FixMatchAvg(atoll.FedAvg):
    """Federated averaging that sends a threshold."""

    tau: float = TAU

    def broadcast(self, state, phase):
        return {**super().broadcast(state, phase), "tau": self.tau}


def views(x, rng):
    """Weak noise, and strong noise that also hides entries."""
    hidden = rng.bernoulli(0.2, *x.shape)
    return x + 0.05 * rng.normal(*x.shape), torch.where(hidden, 0.0, x + 0.3 * rng.normal(*x.shape))


def mean_of(losses, rows):
    return (losses * rows).sum() / rows.sum().clamp(min=1)


def loss_of(model, noised, target, labelled, real, broadcast):
    weak, strong = noised
    with torch.no_grad():
        sure, guess = model(weak, broadcast["params"], training=False).softmax(1).max(1)
    taught = F.cross_entropy(model(weak), target, reduction="none")
    guessed = F.cross_entropy(model(strong), guess, reduction="none") * (sure > broadcast["tau"])
    return mean_of(taught, real * labelled) + mean_of(guessed, real * ~labelled)


def fixmatch(model, x, target, labelled, real, broadcast, rng):
    return loss_of(model, views(x, rng), target, labelled, real, broadcast)


def network():
    made, rng = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), np.random.default_rng(3)
    for p in made.parameters():
        p.data = torch.tensor(rng.normal(0, 0.5, tuple(p.shape)), dtype=torch.float32)
    return made


JOB = atoll.Training(
    model=network, algorithm=FixMatchAvg(lr=LR, epochs=EPOCHS, batch_size=BATCH), selection=atoll.Everyone(),
    loss=fixmatch, rounds=ROUNDS, compile="never",
)  # fmt: skip


def federation():
    """Three overlapping clouds at four clients, of 24, 12, 17 and 7 rows; the labels are at the first."""
    rng = np.random.default_rng(0)
    y, owner = rng.integers(0, 3, 60), np.repeat(range(4), [24, 12, 17, 7])
    x = (np.eye(4)[y] * 3 + rng.normal(0, 0.8, (60, 4))).astype(np.float32)
    data = atoll.data.Dataset({"x": x, "y": np.where(owner == 0, y, -1), "labelled": owner == 0})
    return atoll.data.Islands.from_owner(data, owner, 4).with_test(atoll.data.Dataset({"x": x, "y": y}))


# ---------------------------------------------------------------------- the oracle

SEEN = []


def watched(model, x, target, labelled, index, real, broadcast, rng):
    """The same loss, which writes down the rows of each mini-batch and their two views."""
    SEEN.append((index.tolist(), *views(x, rng)))
    return loss_of(model, SEEN[-1][1:], target, labelled, real, broadcast)


def plain_loop(data, steps, lost):
    """Federated averaging of FixMatch in plain PyTorch on the views that were drawn, and the share of guesses that were sure."""
    server, sures = network(), []
    for number in range(1, ROUNDS + 1):
        here = [i for i in range(len(data)) if i not in lost.get(number, ())]
        models = [deepcopy(server) for _ in here]
        for model, one in zip(models, (data.shard(i) for i in here), strict=True):
            optimiser = torch.optim.SGD(model.parameters(), LR)
            for _ in range(EPOCHS * -(-len(one) // BATCH)):
                rows, weak, strong = next(steps)
                labels, there = torch.tensor(one["y"][rows]), torch.tensor(one["labelled"][rows])
                sure, guess = server(weak).softmax(1).max(1)
                keep = ~there & (sure > TAU)
                sures += keep[~there].tolist()
                loss = F.cross_entropy(model(strong[keep]), guess[keep], reduction="sum") / max(1, int((~there).sum()))
                if there.any():
                    loss = loss + F.cross_entropy(model(weak[there]), labels[there])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        sizes = [len(data.shard(i)) for i in here]
        for p, *parts in zip(server.parameters(), *(model.parameters() for model in models), strict=True):
            p.data = sum(n * part.data for n, part in zip(sizes, parts, strict=True)) / sum(sizes)
    assert next(steps, None) is None
    return server, np.mean(sures)


LOST = {2: [2], 3: [0, 3]}


@pytest.mark.quick("inline", "network*")
def test_it_equals_a_plain_loop(survive):
    data = federation()
    cost = Timetable(lost={f":train/@{number}": [f"client-{i}" for i in who] for number, who in LOST.items()})
    life = survive(JOB, data, cost=cost, points=2)
    SEEN.clear()
    atoll.simulate(JOB.replace(loss=watched), data, engine="inline", devices=cost)
    steps = sum(EPOCHS * -(-len(data.shard(i)) // BATCH) for r in range(ROUNDS) for i in range(len(data)) if i not in LOST.get(r + 1, ()))  # fmt: skip
    server, share = plain_loop(data, iter(SEEN[-steps:]), LOST)  # the calls before them only ask what the loss returns
    for name, p in server.named_parameters():
        np.testing.assert_allclose(life.result.params[name], p.detach().numpy(), rtol=1e-4, atol=1e-5)
    right = server(torch.tensor(data.test.x)).argmax(1).numpy() == data.test.y
    assert life.records["main"][-1]["test/accuracy"] == pytest.approx(right.mean(), abs=1e-9)
    assert right.mean() > 0.8
    assert 0.1 < share < 0.9
    assert_true_bytes(life, JOB, data, cost)
