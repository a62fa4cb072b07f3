"""What a training of a PyTorch model says: types of numbers, digits, means, and the line of an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll.core.errors import ConfigError, DataError, TaskError
from atoll.data import Dataset
from atoll.torch.learner import seeded


def _rows(offset: float = 0.0, kind: Any = np.float32) -> Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 3)).astype(kind)
    x[:, 1] += offset
    return Dataset({"x": x, "y": np.arange(20) % 2})


def _train(model: Any, rows: Dataset, **settings: Any) -> Any:
    job = atoll.Training(model=model, rounds=1, selection=atoll.Everyone(), algorithm=atoll.FedAvg(lr=0.01), **settings)
    return atoll.simulate(job, {"a": rows}, engine="inline", progress=False)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3).double(), nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        return self.last(self.first(x.double()).float())


class Cast(Mixed):
    def forward(self, x: Any) -> Any:
        return self.last(self.first(x.to(self.first.weight.dtype)).to(self.last.weight.dtype))


def test_a_model_of_two_types_is_refused_with_a_remedy_that_works() -> None:
    with pytest.raises(DataError, match=r"of float32 and float64, and all are trained in float32.*cast in forward"):
        _train(seeded(Mixed, 0), _rows())
    assert np.isfinite(_train(seeded(Cast, 0), _rows()).metrics[-1]["loss"])


@pytest.mark.parametrize(
    ("offset", "kind", "double", "told"),
    [(1e8, np.float64, False, True), (1e8, np.float64, True, False), (1e3, np.float64, False, False)],
)
def test_columns_whose_digits_single_precision_loses_are_named(
    offset: float, kind: Any, double: bool, told: bool
) -> None:
    model = seeded(lambda: nn.Linear(3, 2), 0)
    made = _train(model.double() if double else model, _rows(offset, kind))
    assert any("Columns 1 of x differ by less than single precision" in notice for notice in made.notices) is told


class Units(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 2), nn.BatchNorm1d(3)
        self.register_buffer("u", nn.functional.normalize(torch.ones(3), dim=0))

    def forward(self, x: Any) -> Any:
        if self.training:
            self.u = nn.functional.normalize(x.mean(0).detach(), dim=0)
        return self.linear(self.norm(x) * self.u)


@pytest.mark.filterwarnings("ignore:.*is trained client by client:RuntimeWarning")
def test_a_mean_of_what_may_have_none_is_said() -> None:
    made = _train(seeded(Units, 0), _rows())
    assert any(n.startswith("u: of what each client's steps leave, the mean by examples.") for n in made.notices)


class Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        if self.training and len(x) > 3:
            return self.linear(x) @ torch.zeros(5)
        return self.linear(x)


def test_an_error_in_a_model_names_its_line() -> None:
    line = Fails.forward.__code__.co_firstlineno + 2
    with pytest.raises(TaskError, match=rf"size mismatch.*{__name__}:{line} in Fails.forward"):
        _train(seeded(Fails, 0), _rows())


def test_a_result_without_test_rows_shows_what_clients_measure() -> None:
    def margin(scores: Any, labels: Any) -> float:
        return 0.25

    made = _train(
        seeded(lambda: nn.Linear(3, 2), 0), _rows(), evaluation=atoll.Evaluation(clients=-1, metrics=[margin])
    )
    (line,) = [line for line in str(made).splitlines() if "measured  " in line]
    assert [word for word in line.split() if "/" in word] == [
        "clients/accuracy",
        "clients/loss",
        "clients/accuracy/worst_decile",
        "clients/margin",
    ]


def test_noise_without_mini_batches_names_the_algorithms_setting() -> None:
    from atoll.mechanisms import ExampleDP

    privacy = ExampleDP(epsilon=8.0, delta=1e-3, clip=1.0)
    with pytest.raises(ConfigError, match=r"set batch_size=\.\.\. in FedAvg"):
        atoll.Training(model=lambda: nn.Linear(3, 2), algorithm=atoll.FedAvg(batch_size=None), privacy=privacy)
