"""Layers of LSTM and GRU cells as single operations: PyTorch's own layers are the oracle, in eager mode and in native code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import atoll
from atoll.algorithms import FedAvg
from atoll.native import cpp_compiler
from atoll.torch import LocalTraining
from atoll.torch.blocks.decide import whole_layers
from atoll.torch.blocks.native_cohort import NativeCohort
from atoll.torch.tracing.recurrent import gru_layer, lstm_layer
from tests.support.torch_toys import broadcast_of, compare, seeded, shards_of

Tensor = torch.Tensor
KINDS: dict[str, Any] = {"lstm": (nn.LSTM, lstm_layer, 2), "gru": (nn.GRU, gru_layer, 1)}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("time", "batch", "inputs", "hidden"), [(6, 3, 5, 7), (1, 1, 1, 1), (3, 2, 20, 33)])
def test_outputs_and_all_gradients_are_those_of_pytorchs_layer(
    kind: str, bias: bool, time: int, batch: int, inputs: int, hidden: int
) -> None:
    make, layer, states = KINDS[kind]
    module = seeded(lambda: make(inputs, hidden, bias=bias))
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(time, batch, inputs, generator=draw, requires_grad=True)
    state = [torch.randn(1, batch, hidden, generator=draw, requires_grad=True) for _ in range(states)]
    weight = torch.randn(time, batch, hidden, generator=draw)

    def gradients(y: Tensor, ends: Any) -> tuple[Tensor, ...]:
        loss = (y * weight).sum() + sum((end * end).sum() for end in ends)
        return torch.autograd.grad(loss, [x, *state, *module.parameters()])

    y, ends = module(x, tuple(state) if states == 2 else state[0])
    want = gradients(y, ends if states == 2 else (ends,))
    made, last = layer(x, tuple(s[0] for s in state), list(module.parameters()))
    torch.testing.assert_close(made, y, rtol=1e-5, atol=1e-6)
    for got, expected in zip(gradients(made, last), want, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


class Reader(nn.Module):
    """Two recurrent layers over the columns of a row, and what they end with."""

    def __init__(self, make: Any, **settings: Any) -> None:
        super().__init__()
        self.layers = make(3, 17, 2, **settings)
        self.last = nn.Linear((3 if settings.get("bidirectional") else 2) * 17, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(len(x), 4, 3) if self.layers.batch_first else x.reshape(len(x), 4, 3).transpose(0, 1)
        y, end = self.layers(rows)
        end = end[1] if isinstance(end, tuple) else end  # the cells of an LSTM
        seen = y.mean(dim=1 if self.layers.batch_first else 0)
        return self.last(torch.cat([seen, end[-1]], -1))


READERS: dict[str, Any] = {
    "lstm": lambda: Reader(nn.LSTM, batch_first=True),
    "gru": lambda: Reader(nn.GRU),
    "lstm with dropout": lambda: Reader(nn.LSTM, batch_first=True, dropout=0.5),
    "lstm in both directions": lambda: Reader(nn.LSTM, batch_first=True, bidirectional=True),
    "gru without bias": lambda: Reader(nn.GRU, batch_first=True, bias=False),
}


@pytest.fixture
def one_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.getbasetemp() / "native"
    monkeypatch.setenv("ATOLL_CACHE", str(folder))
    return folder


@pytest.mark.quick("gru")
@pytest.mark.skipif(cpp_compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", READERS)
def test_native_code_trains_as_the_reference_does(name: str, one_cache: Path) -> None:
    model = seeded(READERS[name])
    choices = {"mode": "single", "native": True, "widths": [5], "uneven": True}
    training = LocalTraining(model, FedAvg(lr=0.1, epochs=2, batch_size=5), choices=choices)
    # Hidden weights move by less than 0.01 here, so the rounding of float32 weights is 1e-5 of that.
    assert compare(training, shards_of([7, 4, 12, 0], (12,)), broadcast_of(model)) < 1e-4
    assert training._runner is not None
    assert any(isinstance(code, NativeCohort) for code in training._runner.natives._made.values())


def long_rows(rows: int = 60, length: int = 40) -> Any:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(rows, length, 8, generator=draw).numpy()
    return atoll.data.Dataset({"x": x, "y": (x[:, :, 0].sum(1) > 0).astype("int64")}, classes=2)


class Long(nn.Module):
    """A sequence long enough that a traced loop would be thousands of operations."""

    def __init__(self, make: Any = nn.LSTM, **settings: Any) -> None:
        super().__init__()
        self.layer = make(8, 64, batch_first=True, **settings)
        self.last = nn.Linear(64, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(x)[0][:, -1])


def chosen(model: Any, **settings: Any) -> tuple[dict[str, Any], Any]:
    islands = atoll.data.iid(long_rows(), parties=4, seed=0)
    job = atoll.Training(
        model=model, algorithm=FedAvg(lr=0.1, batch_size=8), selection=atoll.Everyone(), rounds=2, **settings
    )
    result = atoll.simulate(job, islands, workers=1)
    return next(iter(result.engine["tasks"].values()))["tuning"], result


@pytest.mark.slow
@pytest.mark.skipif(cpp_compiler() is None, reason="no C++ compiler")
def test_long_sequences_run_in_native_code_if_that_pays(one_cache: Path) -> None:
    native, first = chosen(Long, compile="always")
    assert (native["mode"], native["code"]) == ("single", ["steps"])
    short, second = chosen(Long)  # two rounds do not repay a compiler
    assert (short["mode"], short["code"]) == ("each", [])
    for name, value in first.params.items():
        assert abs(value - second.params[name]).max() < 1e-5


def test_layers_that_native_code_does_not_have_run_in_pytorchs_kernels() -> None:
    assert not whole_layers(seeded(lambda: nn.LSTM(8, 64, proj_size=32)))
    assert not whole_layers(seeded(lambda: Long(nn.RNN)))
    assert whole_layers(seeded(lambda: Long(nn.LSTM)))
    assert whole_layers(seeded(lambda: Long(nn.GRU)))
