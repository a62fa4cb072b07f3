"""Losses that an algorithm brings with it: their inputs, other losses in a step, and readings, on every engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atoll
import atoll.data
import atoll.models
from atoll.algorithms import FedAvg, FedProx
from atoll.core.algebra import tree as T
from atoll.core.errors import CompositionError
from atoll.core.facets import facet
from atoll.learn import Training
from atoll.learn.algorithm import Labelled
from atoll.learn.local.own_loss import OwnLoss
from atoll.torch.tracing.keyed import row_keys

ENGINES = ("inline", "batched")
WORK: dict[str, Any] = {"lr": 0.1, "steps": 3, "batch_size": 8}


def _islands() -> Any:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(70, 5)).astype(np.float32), draw.integers(0, 3, 70)
    return atoll.data.dirichlet(atoll.data.Dataset({"x": x, "y": y}), parties=3, alpha=1.0, seed=0)


def _trained(algorithm: Any, engine: str = "inline", model: Any = None, **settings: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = nn.Linear(5, 3) if model is None else model
    job = Training(model=made, algorithm=algorithm, rounds=2, **settings)
    return atoll.simulate(job, _islands(), engine=engine, seed=2, progress=False).params


def _gap(a: Any, b: Any) -> float:
    return max(float(np.abs(one - two).max()) for one, two in zip(T.leaves(a), T.leaves(b), strict=True))


@dataclass(frozen=True)
class _Squares(OwnLoss):
    """Noise of each row's own key moves its outputs away."""

    scale: float = 1.0

    def __call__(self, *, model: Any, x: Any, keys: Any, real: Any) -> Any:
        noise = (keys & 0xFFFF).to(x.dtype).unsqueeze(1) / 0xFFFF
        return (((model(x) - self.scale * noise) ** 2).mean(1) * real).sum() / real.sum()


@dataclass(frozen=True)
class _Sums(OwnLoss):
    """What a step reads: sums of outputs, and of rows, padding left out."""

    def __call__(self, *, model: Any, x: Any, real: Any) -> Any:
        return {"outputs": (model(x) * real.unsqueeze(1)).sum(0), "rows": real.sum()}


@dataclass(frozen=True)
class _Towards(OwnLoss):
    """Towards what a teacher says, which the step hands over."""

    form = "rows"

    def __call__(self, *, model: Any, x: Any, broadcast: Any) -> Any:
        return ((model(x) - model(x, broadcast["teacher"], training=False).detach()) ** 2).mean(1)


class _Own(FedAvg, Labelled):
    kept: Any = (_Squares(),)

    @property
    def losses(self) -> tuple[Any, ...]:
        return tuple(self.kept)


class _Reading(_Own):
    kept = (_Squares(), _Sums())

    def step(self, local: Any, grad: Any, broadcast: Any) -> Any:
        made = grad.read(_Sums(), local["params"])
        nudge = made["outputs"] * 0.1 / made["rows"]
        params = {**local["params"], "bias": local["params"]["bias"] + nudge}
        return super().step({**local, "params": params}, grad, broadcast)


class _Taught(_Own):
    kept = (_Squares(), _Towards())

    def step(self, local: Any, grad: Any, broadcast: Any) -> Any:
        teacher = {"bias": broadcast["params"]["bias"] + 1.0}  # the other names are the current ones
        pull = grad.on(_Towards(), teacher=teacher)(local["params"])
        made = super().step(local, grad, broadcast)
        return {**made, "params": T.sub(made["params"], T.scale(pull, 0.1))}


@pytest.mark.parametrize("kind", [_Own, _Reading, _Taught])
def test_steps_with_own_losses_are_the_same_in_blocks_of_clients(kind: Any) -> None:
    one, many = (_trained(kind(**WORK), engine) for engine in ENGINES)
    assert _gap(one, many) < 1e-5


def test_readings_and_other_losses_act() -> None:
    plain, read, taught = (_trained(kind(**WORK)) for kind in (_Own, _Reading, _Taught))
    assert _gap(plain, read) > 1e-3
    assert _gap(plain, taught) > 1e-3


def test_an_algorithms_loss_replaces_the_trainings() -> None:
    assert _gap(_trained(_Own(**WORK)), _trained(FedAvg(**WORK))) > 1e-3
    with pytest.raises(CompositionError, match="loss='nll', and _Own trains on a loss of its own"):
        _trained(_Own(**WORK), loss="nll")


def test_a_rows_key_depends_on_client_step_and_row_alone() -> None:
    seed = torch.tensor([123, 456])
    keys = row_keys(seed, torch.arange(50))
    shuffled = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(row_keys(seed, shuffled), keys[shuffled])
    assert len({*keys.tolist(), *row_keys(torch.tensor([124, 456]), torch.arange(50)).tolist()}) == 100
    assert torch.equal(row_keys(seed.expand(50, 2), torch.arange(50)), keys)


def test_a_loss_that_is_not_declared_is_refused() -> None:
    class Wrong(_Own):
        def step(self, local: Any, grad: Any, broadcast: Any) -> Any:
            return super().step(local, grad.on(_Squares(2.0)), broadcast)

    with pytest.raises(CompositionError, match="asks for the loss _Squares, which the algorithm does not declare"):
        _trained(Wrong(**WORK))


def test_a_model_in_numpy_is_refused() -> None:
    with pytest.raises(CompositionError, match=r"trains on a loss of its own.*knows only the training's loss"):
        _trained(_Own(**WORK), model=atoll.models.linear(5, 3))


def test_a_wrapper_keeps_the_losses_of_its_base() -> None:
    from atoll.learn.algorithms.accelerated import Accelerated

    assert facet(Accelerated(_Own(**WORK)), Labelled).losses == (_Squares(),)
    assert facet(FedProx(), Labelled).losses == ()
