"""Digits of 8 by 8 pixels, and the same on light ground with a pattern: trainings with FADE's tricks and without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from atoll.data import Islands

__all__ = ["VARIANTS", "apart", "domains", "exchanging", "network", "scores"]

VARIANTS: dict[str, dict[str, Any]] = {
    "sources alone": {"weight": 0.0},
    "local discriminators": {"power": 1, "certain": False},
    "squared": {"power": 2, "certain": False},
    "CDAN": {"power": 1, "certain": True},
    "FADE": {"power": 2, "certain": True},
    "one discriminator": {"power": 1, "certain": False},
    "FADA": {},
}
"""Name -> settings of `FADE`; ``CDAN`` and ``FADE`` have a conditional discriminator, ``one discriminator`` has all rows at one party. ``FADA`` is that method,
whose discriminators see features of 256 rows of each party."""
_CONDITIONAL = ("CDAN", "FADE")


def domains(seed: int) -> tuple[Islands, Islands]:
    """Return two sources and a target of other digits as three parties, and the same rows as one party; both with test rows of the target.

    The target's pixels are ``|ground - x|``, with a ground that falls from .5 to 0 in a direction of the row's own.
    """
    from atoll.data import Dataset, Islands, digits

    whole = digits(test=0.0)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(whole.y))
    x, y = whole.x[order].copy(), whole.y[order]
    held = slice(1400, None)
    turn = rng.uniform(0, 2 * np.pi, len(y))
    down, right = (axis.ravel() / 7.0 - 0.5 for axis in np.indices((8, 8)))
    ground = 0.25 + 0.25 * (np.cos(turn)[:, None] * down + np.sin(turn)[:, None] * right)
    x[800:] = np.abs(ground - x)[800:]
    labelled = np.arange(len(y)) < 800
    rows = Dataset({"x": x, "y": np.where(labelled, y, 0), "labelled": labelled}).take(slice(0, 1400))
    owner = np.repeat([0, 1, 2], [400, 400, 600])
    test = Dataset({"x": x[held], "y": y[held]})
    return (
        Islands.from_owner(rows, owner, 3).with_test(test),
        Islands.from_datasets({"all": rows}).with_test(test),
    )


def exchanging(parties: Islands) -> Islands:
    """Return the sources as clients, and the target as the helper of `FADA`."""
    from atoll.data import Islands

    *sources, target = (parties.shard(i).dataset() for i in range(len(parties)))
    made = Islands.from_datasets({f"source {i}": rows for i, rows in enumerate(sources)})
    return made.with_test(parties.test).with_others({"target": target})


def network(conditional: bool) -> Any:
    """Return a fresh network: 64 hidden units, and a discriminator with 32."""
    from torch import nn

    from atoll.labels import DomainNetwork

    seen = 64 * 10 if conditional else 64
    return DomainNetwork(
        nn.Sequential(nn.Linear(64, 64), nn.ReLU()),
        nn.Linear(64, 10),
        discriminator=nn.Sequential(nn.Linear(seen, 32), nn.ReLU(), nn.Linear(32, 1)),
        conditional=conditional,
    )


def scores(name: str, seeds: int, rounds: int = 30, steps: int = 8) -> list[float]:
    """Return the accuracy at the target's test rows, one a seed."""
    from atoll.labels import FADA, FADE
    from atoll.labels.methods import local_sgd
    from atoll.learn import Evaluation, Training
    from atoll.learn.selection import Everyone
    from atoll.simulation import simulate

    found = []
    for seed in range(seeds):
        parties, one = domains(seed)
        data = {"one discriminator": one, "FADA": exchanging(parties)}.get(name, parties)
        base = local_sgd(lr=0.05, steps=steps, batch_size=144 if data is one else 48)
        weights = {"weight": 0.1, "ramp": rounds // 2, **VARIANTS[name]}
        job = Training(
            model=lambda: network(name in _CONDITIONAL),
            algorithm=FADA(base=base, rows=256) if name == "FADA" else FADE(base=base, **weights),
            selection=Everyone(),
            rounds=rounds,
            evaluation=Evaluation(every=rounds),
            compile="never",
        )
        made = simulate(job, data, engine="inline", seed=seed, progress=False)
        found.append(float(made.history[-1]["test/accuracy"]))
    return found


def apart(rounds: int = 5) -> float:
    """Return the largest difference of a parameter between local discriminators and one discriminator, after rounds of one step on all rows.

    Two parties of equal size, a source and a target; the one party takes half the step, since its loss is the sum of theirs.
    """
    from atoll.core.algebra import tree as T
    from atoll.data import Islands
    from atoll.labels import FADE
    from atoll.learn import Training
    from atoll.learn.algorithms import FedAvg
    from atoll.learn.selection import Everyone
    from atoll.simulation import simulate

    _, one = domains(0)
    rows = one.shard(0).dataset().take(slice(200, 1400))
    pair = Islands.from_owner(rows, np.repeat([0, 1], 600), 2)
    made = []
    for data, lr in ((pair, 0.2), (Islands.from_datasets({"all": rows}), 0.1)):
        method = FADE(base=FedAvg(lr=lr, batch_size=None, steps=1), power=1, certain=False)
        job = Training(
            model=lambda: network(False), algorithm=method, selection=Everyone(), rounds=rounds, compile="never"
        )
        made.append(simulate(job, data, engine="inline", seed=0, progress=False).params)
    return max(float(np.abs(leaf).max()) for leaf in T.leaves(T.sub(*made)))
