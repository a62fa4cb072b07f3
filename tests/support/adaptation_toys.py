"""A small network between domains, its federation and its training."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import atoll
from atoll.core.requests.policy import Policy
from atoll.labels import DomainNetwork

WIDTH, CLASSES = 6, 3


def network(discriminator: bool = False, conditional: bool = False, second: bool = False) -> DomainNetwork:
    """A small network with the same weights every time."""
    seen = WIDTH * CLASSES if conditional else WIDTH
    with torch.random.fork_rng(devices=[]):
        judge = nn.Sequential(nn.Linear(seen, 4), nn.Tanh(), nn.Linear(4, 1)) if discriminator else None
        made = DomainNetwork(
            nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh()),
            nn.Linear(WIDTH, CLASSES),
            second=nn.Linear(WIDTH, CLASSES) if second else None,
            discriminator=judge,
            conditional=conditional,
        )
    rng = np.random.default_rng(3)
    for p in made.parameters():
        p.data = torch.tensor(rng.normal(0, 0.5, tuple(p.shape)), dtype=torch.float32)
    return made


def plain_linear():
    with torch.random.fork_rng(devices=[]):
        return nn.Linear(4, 3)


def federation(sizes=(20, 20, 20), targets=(2,), shift=2.0, turn=0.0):
    """Three classes at parties, the last of which has no labels and shifted rows; hidden labels are garbage."""
    rng = np.random.default_rng(0)
    owner = np.repeat(range(len(sizes)), sizes)
    far = np.isin(owner, targets)
    y = rng.integers(0, CLASSES, len(owner))
    x = (np.eye(4)[y] * 3 + rng.normal(0, 0.8, (len(owner), 4)) + far[:, None] * [shift, shift, 0, 0]).astype(
        np.float32
    )
    turned = np.eye(4, dtype=np.float32)
    turned[:2, :2] = [[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]]
    x = np.where(far[:, None], x @ turned, x)
    data = atoll.data.Dataset({"x": x, "y": np.where(far, 0, y), "labelled": ~far})
    test = atoll.data.Dataset({"x": x[far], "y": y[far]})
    return atoll.data.Islands.from_owner(data, owner, len(sizes)).with_test(test)


def trained(algorithm, net, data, *, engine="inline", rounds=3, **more):
    job = atoll.Training(
        model=net, algorithm=algorithm, selection=atoll.Everyone(), rounds=rounds, compile="never", **more
    )
    return atoll.simulate(job, data, engine=engine, progress=False)


class Watched(Policy):
    """Writes down the shape of every array that leaves a party."""

    def __init__(self):
        self.shapes = set()

    def release(self, party, task, reply):
        def look(value):
            if isinstance(value, dict):
                for one in value.values():
                    look(one)
            elif hasattr(value, "value"):
                look(value.value)
            else:
                self.shapes.add(np.shape(value))

        look(reply)
