"""Small models, shards and comparisons for the tests of the PyTorch room."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Part
from atoll.torch import LocalTraining, params_of


def seeded(make: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return make()


class Dropped(nn.Module):
    """Dropout as a layer and as a function, so that a step makes two draws."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(6, 12), nn.Dropout(0.3), nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(torch.relu(self.first(x)))
        return self.last(nn.functional.dropout(hidden, 0.2, self.training))


class Cumulated(nn.Module):
    """With an operation that native steps do not know."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 12), nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.cumsum(torch.tanh(self.first(x)), dim=1))


class Recurrent(nn.Module):
    def __init__(self, kind: Any, **settings: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 5)
        self.cells = kind(5, 6, batch_first=True, **settings)
        self.last = nn.Linear(6 * (2 if settings.get("bidirectional") else 1), 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.cells(self.embed(x))[0][:, -1])


class Images(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(1, 4, 3), norm, nn.Linear(36, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2).flatten(1))


def shards_of(sizes: list[int], shape: tuple[int, ...], *, ids: bool = False, classes: int = 4) -> list[Any]:
    rng = np.random.default_rng(3)
    inputs = (lambda n: rng.integers(0, 20, (n, *shape))) if ids else (lambda n: rng.normal(size=(n, *shape)))
    return [(inputs(n) if ids else inputs(n).astype(np.float32), rng.integers(0, classes, n)) for n in sizes]


def keys_of(count: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 2**63, count).astype(np.uint64)


def broadcast_of(model: nn.Module, **more: Any) -> dict[str, Any]:
    return {"params": params_of(model), "lr": 0.1, **more}


def worst(want: Any, got: Any) -> float:
    """The largest difference, relative to the largest entry of the leaf."""
    gaps = [0.0]
    for a, b in zip(_numbers(want), _numbers(got), strict=True):
        gaps.append(float(np.abs(np.asarray(a) - np.asarray(b)).max(initial=0)) / (float(np.abs(a).max()) + 1e-12))
    return max(gaps)


def _numbers(tree: Any) -> list[Any]:
    """The leaves of a tree, and of the values of single replies in it."""
    found: list[Any] = []
    for leaf in T.leaves(tree):
        found += _numbers(leaf.value) if isinstance(leaf, Part) else [leaf]
    return found


def compare(training: LocalTraining, shards: list[Any], broadcast: Any, clients: Any = None) -> float:
    """The worst relative difference of `many` and `many_sum` from `one`, over replies, weights and states."""
    keys = keys_of(len(shards))
    states = [None] * len(shards) if clients is None else clients
    ones = [
        training.one(shard, broadcast, state, int(key)) for shard, state, key in zip(shards, states, keys, strict=True)
    ]
    gap = 0.0
    seen: list[int] = []
    for batch in training.many(shards, broadcast, clients, keys):
        assert not batch.rejected
        for place, position in enumerate(batch.positions.tolist()):
            seen.append(position)
            reply, state = ones[position]
            assert set(batch.reply) == set(reply)
            for name, aggregate in reply.items():
                got = T.map(lambda leaf, place=place: leaf[place], batch.reply[name].value)
                gap = max(gap, worst(aggregate.value, got))
                weights = np.broadcast_to(batch.reply[name].weight, len(batch.positions))
                assert weights[place] == aggregate.weight
            if batch.states is not None:
                gap = max(gap, worst(state, T.map(lambda leaf, place=place: leaf[place], batch.states)))
    assert sorted(seen) == list(range(len(shards)))
    summed = training.many_sum(shards, broadcast, clients, keys)
    for name in ones[0][0]:
        total = ones[0][0][name].total()
        for reply, _ in ones[1:]:
            total = total.merge(reply[name].total())
        gap = max(gap, worst(total.value, summed.totals[name].value))
        assert abs(total.weight - summed.totals[name].weight) < 1e-6 * max(total.weight, 1.0)
        assert total.n == summed.totals[name].n
    return gap
