"""Profiles, rounds and spoiled clients of the tests of FedProf."""

from __future__ import annotations

import numpy as np

import atoll
from atoll.algorithms import FedAvg
from atoll.core.requests.party import Roster
from atoll.data import Islands
from atoll.learn import Training
from atoll.selection import FedProf, Seen


def profile(rng, q=3):
    return {"mean": rng.normal(size=q).astype(np.float32), "var": rng.uniform(0.2, 2.0, q).astype(np.float32)}


def round_seen(n, number, who, profiles, own, examples=None, versions=None):
    there = Roster(n).all()[np.asarray(who, dtype=int)]
    rows = np.ones(len(who)) if examples is None else np.asarray(examples, dtype=float)
    told = {"profile": list(profiles)} if len(profiles) else {}
    return Seen(
        number,
        there,
        there,
        np.zeros(len(who)),
        told,
        own=lambda name: own,
        examples=rows,
        versions=None if versions is None else np.asarray(versions),
    )


def spoiled(parties=12, seed=0, *, test=True):
    """Digits at 12 clients, of which the second half has noise for pixels."""
    digits = atoll.data.digits()
    whole = atoll.data.iid(digits, parties=parties, seed=seed)
    parts = []
    for i in range(parties):
        shard = whole.shard(i)
        x = np.array(shard.x)
        if i >= parties // 2:
            x = np.random.default_rng(100 + i).uniform(0.0, 1.0, x.shape).astype(x.dtype)
        parts.append(atoll.data.Dataset({"x": x, "y": np.asarray(shard.y)}, task="classification", classes=10))
    return Islands.from_datasets(parts, test=whole.test if test else None)


class Watched(FedProf):
    """Keeps what it saw, outside of its memory."""

    def accept(self, seen, state):
        self.log.append(seen)
        self.states.append(super().accept(seen, state))
        return self.states[-1]


def watched(*args, **settings):
    rule = Watched(*args, **settings)
    object.__setattr__(rule, "log", [])
    object.__setattr__(rule, "states", [])
    return rule


def job(rule, rounds=5, **parts):
    return Training(
        model=atoll.models.mlp(64, 10, hidden=(16,)),
        algorithm=FedAvg(lr=0.2, batch_size=16),
        selection=rule,
        rounds=rounds,
        **parts,
    )
