"""What cannot share a program falls back client by client, with one notice that names the reason."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from atoll.algorithms import FedAvg
from atoll.core.algebra import tree as T
from atoll.torch import LocalTraining, buffers_of, cache_folder, params_of
from atoll.torch.blocks import decide
from atoll.torch.blocks.decide import _gap, _nudge
from atoll.torch.blocks.source import RowSource
from tests.support.torch_toys import Cumulated, Images, broadcast_of, compare, keys_of, seeded, shards_of, worst

ALGORITHM = FedAvg(epochs=2, batch_size=4)


def test_batchnorm_averages_its_buffers() -> None:
    model = seeded(lambda: Images(nn.BatchNorm2d(4)))
    training = LocalTraining(model, ALGORITHM)
    shards = shards_of([12, 6], (1, 8, 8))
    with pytest.warns(RuntimeWarning, match=r"Images is trained client by client: BatchNorm2d 'norm' takes statistics"):
        assert compare(training, shards, broadcast_of(model)) < 1e-6
    reply, _ = training.one(shards[0], broadcast_of(model), None, 1)
    assert set(reply["buffers"].value) == {"norm.running_mean", "norm.running_var"}
    assert reply["buffers"].weight == 12.0
    # The oracle: an ordinary loop over the same batches, with the module itself.
    given = {name: value + 1.0 for name, value in buffers_of(model).items()}
    moved, _ = training.one(shards[0], broadcast_of(model, buffers=given), None, 1)
    assert worst(reply["buffers"].value, moved["buffers"].value) > 0.1


def test_batchnorm_matches_an_ordinary_loop() -> None:
    model = seeded(lambda: Images(nn.BatchNorm2d(4)))
    ((x, y),) = shards_of([8], (1, 8, 8))
    training = LocalTraining(model, FedAvg(batch_size=None, steps=2))
    reply, _ = training.one((x, y), broadcast_of(model), None, 1)
    start = params_of(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    for _ in range(2):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(torch.tensor(x)), torch.tensor(y)).backward()
        optimiser.step()
    assert worst({n: v - start[n] for n, v in params_of(model).items()}, reply["update"].value) < 1e-5
    assert worst(buffers_of(model), reply["buffers"].value) < 1e-6


def test_batchnorm_may_keep_its_buffers_at_the_client() -> None:
    model = seeded(lambda: Images(nn.BatchNorm2d(4)))
    training = LocalTraining(model, ALGORITHM, buffers="local")
    shards = shards_of([12], (1, 8, 8))
    reply, state = training.one(shards[0], broadcast_of(model), None, 1)
    assert "buffers" not in reply
    _, later = training.one(shards[0], broadcast_of(model), state, 1)
    assert worst(state["buffers"], later["buffers"]) > 1e-3
    with pytest.warns(RuntimeWarning, match="client by client"):
        (batch,) = training.many(shards, broadcast_of(model), [state], np.array([1], np.uint64))
    assert worst(later["buffers"], {n: v[0] for n, v in batch.states["buffers"].items()}) == 0.0


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x + torch.randn_like(x) if self.training else x)


def test_other_randomness_is_keyed_by_client_and_falls_back() -> None:
    model = seeded(Noisy)
    training = LocalTraining(model, ALGORITHM)
    with pytest.warns(RuntimeWarning, match="randn_like, whose numbers cannot be keyed"):
        assert compare(training, shards_of([8, 6], (6,)), broadcast_of(model)) < 1e-6


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x) * (2.0 if float(x.detach().sum()) > 0 else 1.0)


def test_branching_on_values_falls_back() -> None:
    model = seeded(Branching)
    training = LocalTraining(model, ALGORITHM)
    with pytest.warns(RuntimeWarning, match="Branching is trained client by client: it cannot be traced"):
        assert compare(training, shards_of([8, 6], (6,)), broadcast_of(model)) < 1e-6


class Centred(nn.Module):
    """Rows look at each other, without any layer that says so."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x - x.mean(0))


def test_rows_that_look_at_each_other_are_found_by_comparison() -> None:
    model = seeded(Centred)
    training = LocalTraining(model, ALGORITHM)
    with pytest.warns(RuntimeWarning, match="in a block its 'update' differs from that of a single client"):
        assert compare(training, shards_of([7, 6, 5], (6,)), broadcast_of(model)) < 1e-6


class Jumping(nn.Module):
    """A step as high as a thousand at a value that the first layer meets only up to rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 3), nn.Linear(3, 4)
        with torch.no_grad():
            self.first.weight.copy_(torch.full((3, 6), 1.0 / 3.0))
            self.first.bias.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        return self.last(hidden + 3.0 * (hidden > 0.7).to(x.dtype))


def test_a_rounding_that_flips_a_jump_is_not_taken_for_an_error() -> None:
    model = seeded(Jumping)
    # Sums to 0.7 in the first layer, so that a nudge of the weights by 1e-6 decides the jump.
    shards = [(np.full((6, 6), 0.35, dtype=np.float32), np.arange(6) % 4) for _ in range(3)]
    training = LocalTraining(model, FedAvg(batch_size=3), compile="never")
    plain = training._train_one(_pool(training, shards[0]), 0, broadcast_of(model), None, 1).reply
    nudged = training._train_one(_pool(training, shards[0]), 0, _nudge(broadcast_of(model)), None, 1).reply
    assert _gap(plain["update"].value, nudged["update"].value) > 0.05
    training.many_sum(shards, broadcast_of(model), None, keys_of(3))
    assert training.choices["mode"] == "vector"


@pytest.mark.parametrize("everywhere", [False, True])
def test_an_update_that_differs_at_one_point_only_has_flipped(
    everywhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pseudo-label at its threshold flips there alone; what nudges of one millionth do not show, others a hundredth away do."""
    model = seeded(lambda: nn.Linear(6, 4))
    training, sent, found, looked = LocalTraining(model, ALGORITHM), broadcast_of(model), decide._run_alone, []

    def flipped(runner: Any, chosen: Any, pool: Any, broadcast: Any, *rest: Any) -> Any:
        looked.append(broadcast is sent)
        for at, got, summed in found(runner, chosen, pool, broadcast, *rest):
            yield at, T.scale(got, 1.5) if everywhere or looked[-1] else got, summed

    monkeypatch.setattr(decide, "_run_alone", flipped)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        training.many_sum(shards_of([8, 6, 6], (6,)), sent, None, keys_of(3))
    assert looked == [True, False, False] if everywhere else [True, False]
    assert any("in a block its" in str(one.message) for one in told) == everywhere
    assert (training.choices["mode"] == "each") == everywhere


def _pool(training: LocalTraining, shard: Any) -> Any:
    return RowSource([shard], 1).pool(np.zeros(1, np.int64), training.network)


def test_a_loss_that_gives_means_only_runs_in_exact_batches() -> None:
    def huber(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.huber_loss(outputs, nn.functional.one_hot(targets, 4).to(outputs.dtype))

    model = seeded(lambda: nn.Linear(6, 4))
    training = LocalTraining(model, ALGORITHM, loss=huber, compile="never")
    assert compare(training, shards_of([9, 6, 3], (6,)), broadcast_of(model)) < 1e-5
    assert training.choices["mode"] == "single"


def test_without_a_compiler_it_runs_with_one_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.native.shutil.which", lambda name: None)
    model = seeded(lambda: nn.Linear(6, 4))
    shards, keys = shards_of([8, 8], (6,)), keys_of(2)
    training = LocalTraining(model, ALGORITHM, compile="always")
    with pytest.warns(RuntimeWarning, match=r"no C\+\+ compiler \(g\+\+ or clang\+\+\) was found") as seen:
        training.many_sum(shards, broadcast_of(model), None, keys)
    assert len(seen) == 1
    assert training.choices["code"] == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LocalTraining(model, ALGORITHM, compile="always").many_sum(shards, broadcast_of(model), None, keys)


@pytest.mark.slow
def test_a_compiler_that_fails_leaves_the_uncompiled_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("ld: cannot find -lgomp")

    monkeypatch.setattr("atoll.torch.tracing.compiler._compile", broken)
    model = seeded(Cumulated)
    training = LocalTraining(model, ALGORITHM, choices={"mode": "vector", "block": 2, "code": ["compiled"]})
    with pytest.warns(RuntimeWarning, match="compiling the local update failed.*cannot find -lgomp") as seen:
        assert compare(training, shards_of([8, 8], (6,)), broadcast_of(model)) < 1e-5
    assert len(seen) == 1


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_CACHE", "/a")
    assert str(cache_folder()) == "/a/torch"
    monkeypatch.delenv("ATOLL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert str(cache_folder()) == "/x/atoll/torch"
