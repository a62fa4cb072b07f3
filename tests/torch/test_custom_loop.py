"""`CustomLoop` refuses methods that nothing would apply, and runs what algorithms do before and after the local steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll.algorithms import FedAvg, FedAvgM, FedProx, FedSSO, Mime, Scaffold, Upcycled
from atoll.core.algebra import tree as T
from atoll.core.errors import CompositionError
from atoll.selection import Everyone
from atoll.torch import CustomLoop
from tests.support.torch_toys import seeded

ISLANDS = atoll.data.iid(atoll.data.digits(), parties=4, seed=0).subset([0, 1, 2])


def _never(model: nn.Module, shard: Any, config: dict[str, Any], rng: Any) -> None:
    raise AssertionError("a client was contacted")


def _descent(model: nn.Module, shard: Any, config: dict[str, Any], rng: Any) -> None:
    x, y = torch.tensor(shard.x, dtype=torch.float32), torch.tensor(shard.y)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()


@pytest.mark.parametrize(
    "algorithm",
    [FedProx(mu=0.1), Scaffold(), Mime(), Upcycled(base=FedProx(mu=0.1), coefficient=0.5)],
    ids=lambda a: type(a).__name__,
)
def test_a_method_that_changes_the_step_is_refused_before_anyone_is_contacted(algorithm: Any) -> None:
    job = atoll.Training(model=CustomLoop(seeded(lambda: nn.Linear(64, 10)), _never), algorithm=algorithm, rounds=1)
    with pytest.raises(CompositionError, match="changes the local step, and CustomLoop runs its own training"):
        atoll.simulate(job, ISLANDS, engine="inline")


@pytest.mark.parametrize("kind", [FedAvg, FedAvgM, FedSSO])
def test_what_an_algorithm_does_around_the_steps_is_done(kind: Any) -> None:
    model = seeded(lambda: nn.Linear(64, 10))
    algorithm = kind(lr=0.1, epochs=3, batch_size=None)
    job = atoll.Training(model=model, algorithm=algorithm, selection=Everyone(), rounds=2)
    theirs = atoll.simulate(job, ISLANDS, engine="inline")
    ours = atoll.simulate(job.replace(model=CustomLoop(model, _descent)), ISLANDS, engine="inline")
    for want, got in zip(T.leaves(theirs.params), T.leaves(ours.params), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
