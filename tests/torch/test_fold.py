"""The graph pass that computes once what no input changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from atoll.algorithms import FedAvg
from atoll.torch.local import LocalTraining
from atoll.torch.tracing.compiler import make_program


def _operations(program: Any) -> int:
    return sum(node.op == "call_function" for node in program.graph.graph.nodes)


def test_what_no_input_changes_is_computed_once() -> None:
    def fn(x: Any, y: Any) -> list[Any]:
        classes = torch.arange(3) * 2 - torch.full_like(y, 2, dtype=torch.int64)[0]
        slope = (torch.ones_like(x).neg() / 4.0).unsqueeze(0).expand(2, 4, 3)
        return [torch.where(y.unsqueeze(1) == classes, x * 1, 0.0) + slope.sum(0).view(4, 3)]

    x, y = torch.arange(12.0).reshape(4, 3), torch.tensor([-2, 0, 2, 5])
    program = make_program(fn, [x, y], compiled=False)
    # unsqueeze, ==, where and +
    assert _operations(program) == 4
    for given in (x, -x):
        assert torch.equal(program([given, y])[0], fn(given, y)[0])


def test_what_is_written_to_or_returned_is_made_anew() -> None:
    def fn(x: Any) -> list[Any]:
        total, first = torch.zeros(4), torch.ones(4)
        first.split(2)[1].add_(x[:2])
        return [total.add_(x), first * 2.0, torch.ones(2), torch.zeros_like(x).view(2, 2), x * 1]

    program = make_program(fn, [torch.ones(4)], compiled=False)
    for number in (1.0, 2.0, 3.0):
        given = torch.full((4,), number)
        made = program([given])
        for got, want in zip(made, fn(given), strict=True):
            assert torch.equal(got, want)
            got.fill_(7.0)


@pytest.mark.parametrize("loss", ["cross_entropy", "nll"])
def test_a_step_of_a_block_is_few_operations(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("PyTorch's decompositions check their arguments with this, and load sympy to do so")

    monkeypatch.setattr(torch, "_check_with", refuse)
    with torch.random.fork_rng(devices=[]):
        model = nn.Sequential(nn.Linear(3, 4), nn.LogSoftmax(1)) if loss == "nll" else nn.Linear(3, 4)
    training = LocalTraining(
        model, FedAvg(epochs=1, batch_size=2), loss=loss, compile="never", choices={"mode": "vector", "block": 2}
    )
    draw = np.random.default_rng(0)
    shards = [(draw.standard_normal((4, 3)).astype(np.float32), draw.integers(0, 4, 4)) for _ in range(2)]
    sent = {"params": {k: v.detach().numpy() for k, v in model.named_parameters()}, "lr": 0.1}
    training.many_sum(shards, sent, None, np.arange(2, dtype=np.uint64))
    (block,) = training._open_runner()._blocks.values()
    (step,) = [program for name, program in block.programs.items() if not isinstance(name, str) and name[0] != "sum"]
    # 23 where there were 56, each of which takes some microseconds whatever its size.
    assert _operations(step) <= 25
