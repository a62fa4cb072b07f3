"""Steps translated to C++ give what PyTorch gives, for every operation and layout that is translated; the rest is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from atoll import native as native_library
from atoll.algorithms import FedAvg, FedDyn, Scaffold
from atoll.core.algebra import tree as T
from atoll.core.errors import ConfigError
from atoll.native import cpp_compiler
from atoll.torch import LocalTraining
from atoll.torch.blocks.native_cohort import NativeCohort, NativeSteps, make_native
from atoll.torch.native import enabled
from atoll.torch.native.program import share
from atoll.torch.native.writer import Body, CodeStatement
from tests.support.torch_toys import Dropped, Images, broadcast_of, compare, keys_of, seeded, shards_of

pytestmark = pytest.mark.skipif(cpp_compiler() is None, reason="no C++ compiler")
Tensor = torch.Tensor
INF = float("inf")


@pytest.fixture(autouse=True)
def one_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.getbasetemp() / "native"
    monkeypatch.setenv("ATOLL_CACHE", str(folder))
    return folder


def _drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def _steps(fn: Any, local: list[Tensor], shared: list[Tensor], columns: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Run ``fn(local, shared, data) -> local, loss`` natively on columns ``(clients, steps, ...)``."""
    clients, steps = columns[0].shape[:2]
    numbers = torch.arange(clients * steps).flip(0).reshape(clients, steps, 1)
    pool = torch.arange(clients * steps, dtype=torch.float32).flip(0) / 4  # row numbers[c, s] holds (c * steps + s) / 4
    a, b = len(local), len(shared)

    def step(*flat: Tensor) -> list[Tensor]:
        *after, loss = fn(flat[:a], flat[a : a + b], [column[0] for column in flat[a + b + 1 :]])
        return [*after, loss + flat[a + b].sum()]

    made = make_native(step, [leaf[0] for leaf in local], shared, [torch.zeros(1, 1)], [c[0, :1] for c in columns])
    assert isinstance(made, NativeSteps)
    own = [leaf.clone() for leaf in local]
    losses = made(own, shared, [pool], numbers, columns, None)
    return own, losses - torch.arange(clients * steps).reshape(clients, steps).sum(1) / 4


ELEMENTWISE: dict[str, Any] = {
    "exp-log": lambda x, n: torch.exp(x).log() + torch.log(x.abs()),
    "curves": lambda x, n: torch.tanh(x) + torch.sigmoid(x) * torch.erf(x),
    "roots": lambda x, n: x.abs().sqrt() + (1 + x.abs()).rsqrt() + (1 + x.abs()).reciprocal(),
    "choices": lambda x, n: torch.where(x > 0.1, x, -2.0) + torch.maximum(x, -x) - torch.minimum(x, x * x),
    "signs": lambda x, n: torch.sign(x) * torch.relu(x) + (x**3) + x.clamp_min(-0.5) + x.clamp_max(0.5),
    "whole-numbers": lambda x, n: ((n * 7 ^ (n >> 1)) & 15).to(torch.float32) * x + torch.arange(5) * 0.5,
    "logic": lambda x, n: ((x > 0) & ~(n == 3) | (n != 1)).to(torch.float32) + (n / 3),
    "reversed": lambda x, n: x.flip(0) + x.flip(1) * x.t().flip(-1).t()[:, :5],
    "parts": lambda x, n: (
        torch.cat([x[2:], -x[:1], n[:1].to(torch.float32)], 0) + torch.cat([x[:, :2], x.t()[:4, 1:]], -1)
    ),
    "axes": lambda x, n: x.t().reshape(4, 5) + x.sum(0) + x.amax(1, keepdim=True) + x.mean(),
    "slices": lambda x, n: x[:, 1:4].sum(1, keepdim=True) + x[2:3] + x.unsqueeze(1)[:, 0] + x.amin((0, 1)),
    "spread": lambda x, n: (
        x.var(1, keepdim=True) + x.var((0, 1), correction=0) + torch.std(x, 0) + (x > 9).any(1, keepdim=True)
    ),
    "normalised": lambda x, n: (
        nn.functional.layer_norm(x, (5,)) + nn.functional.group_norm(x.reshape(2, 2, 5), 2).reshape(4, 5)
    ),
    "smooth": lambda x, n: nn.functional.gelu(x) + nn.functional.gelu(x, approximate="tanh") + nn.functional.silu(x),
    "rows": lambda x, n: (
        nn.functional.embedding(n[:, :3] & 3, x).sum(1) + x.index_put((n[:, 0] & 3,), x * x, accumulate=True)
    ),
    "constants": lambda x, n: x * torch.tensor([1.0, -2.0, 0.5, 4.0, 1e-3]) + (n << 3) + torch.tensor([7, 7]).sum(),
    "largest": lambda x, n: (
        torch.where(x.argmax(1, keepdim=True) == n, x, -x) + x.max(0)[0] + (n[:1] & 1).max(1, keepdim=True)[1]
    ),
    "frames": lambda x, n: nn.functional.pad(x, (1, 2, 1, 0), value=3.0)[:4, 1:6] * nn.functional.pad(n, (0, 1))[:, 1:],
    "by-number": lambda x, n: x[n[:, 0] & 3] + x[:, n[1]] + x.reshape(2, 2, 5)[:, n[0] & 1][:, :2].reshape(4, 5),
    "between": lambda x, n: nn.functional.grid_sample(
        torch.stack([x[:2], x[2:]]).unsqueeze(0), x.t()[:, :4].reshape(1, 5, 2, 2) * 1.3, align_corners=True
    ).reshape(4, 5),
    "look-up": lambda x, n: x.gather(1, n) + torch.zeros(4, 5).scatter(1, n, 2.0),
}


# A program takes a second or two to compile, however little is in it: the chains share one, and so do functions and products below.
@pytest.fixture(scope="module")
def chains() -> dict[str, tuple[Tensor, ...]]:
    """For each chain: two leaves and the loss as native code gives them, and as PyTorch does."""
    x = _drawn(3, 2, 4, 5)
    n = torch.from_numpy(np.random.default_rng(2).integers(0, 5, (3, 2, 4, 5)))
    leaves = [torch.zeros(3, 4, 5), torch.ones(3, 4, 5), torch.zeros(3)]

    def step(held: Any, shared: Any, data: Any) -> list[Tensor]:
        after: list[Tensor] = []
        for fn, first, second, loss in zip(ELEMENTWISE.values(), held[::3], held[1::3], held[2::3], strict=True):
            made = fn(*data)
            # The first two are read after the other would have been written.
            after += [made + second, first * 0.5, loss + made.sum()]
        return [*after, torch.zeros(())]

    got, _ = _steps(step, [leaf.clone() for _ in ELEMENTWISE for leaf in leaves], [], [x, n])
    wanted = []
    for c in range(3):
        held = [leaf[c] for _ in ELEMENTWISE for leaf in leaves]
        for s in range(2):
            *held, _ = step(held, [], [x[c, s], n[c, s]])
        wanted.append(held)
    found = [*zip(got, (torch.stack(some) for some in zip(*wanted, strict=True)), strict=True)]
    return {name: tuple(t for pair in found[3 * i : 3 * i + 3] for t in pair) for i, name in enumerate(ELEMENTWISE)}


@pytest.mark.parametrize("name", list(ELEMENTWISE))
def test_elementwise_chains_reductions_and_views(name: str, chains: dict[str, tuple[Tensor, ...]]) -> None:
    first, first_wanted, second, second_wanted, losses, losses_wanted = chains[name]
    torch.testing.assert_close(first, first_wanted, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(second, second_wanted, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(losses, losses_wanted, rtol=1e-5, atol=1e-5)


FUNCTIONS = [torch.exp, torch.log, torch.tanh, torch.sigmoid, torch.erf, torch.sqrt]


def test_functions_over_the_whole_range() -> None:
    edges = [
        0.0,
        -0.0,
        1.0,
        INF,
        -INF,
        float("nan"),
        1e-40,
        1e-30,
        88.6,
        88.8,
        -87.2,
        -104.0,
        3e38,
        -3e38,
        0.2499,
        0.25,
    ]
    x = torch.cat([torch.tensor(edges), 30 * _drawn(1000), _drawn(1000) * 1e-3, torch.exp(20 * _drawn(1000))])
    step = lambda held, shared, data: [*(function(data[0]) for function in FUNCTIONS), torch.zeros(())]  # noqa: E731
    got, _ = _steps(step, [x[None] * 0 for _ in FUNCTIONS], [], [x[None, None]])
    for function, found in zip(FUNCTIONS, got, strict=True):
        # Results below the smallest normal number may be flushed to zero.
        torch.testing.assert_close(found[0], function(x), rtol=1e-6, atol=2e-38, equal_nan=True)


@pytest.mark.slow
def test_rows_of_every_length_fold_and_move() -> None:
    lengths = (3, 10, 37)  # below a vector of 4, 8 or 16 lanes, and between whole ones
    x = _drawn(1, 1, 5, sum(lengths))
    x[0, 0, 1, 4], x[0, 0, 3, 12], x[0, 0, 2, -1], x[0, 0, 4, 30] = float("nan"), INF, float("nan"), -INF

    def step(held: Any, shared: Any, data: Any) -> list[Tensor]:
        made = []
        for end, length in zip(np.cumsum(lengths), lengths, strict=True):
            row = data[0][:, int(end) - length : int(end)]
            most, least = row.amax(1, keepdim=True), row.amin(1, keepdim=True)
            chosen = torch.where(row > 0.2, row * most, row - least)
            made += [chosen, row.sum(1), row.mean(0), row.amax(0), row.amin(0), most, least, chosen.exp().sum(1).log()]
        return [*made, torch.zeros(())]

    wanted = step([], [], [x[0, 0]])[:-1]
    got, _ = _steps(step, [torch.zeros(1, *leaf.shape) for leaf in wanted], [], [x])
    for mine, right in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine[0], right, rtol=1e-5, atol=1e-6, equal_nan=True)


SIDES = [(1, 16), (4, 33), (15, 1), (16, 16), (17, 33), (70, 1), (70, 16)]


@pytest.mark.quick("7")
@pytest.mark.parametrize("m", [1, 7])
def test_products_of_every_layout(m: int) -> None:
    """Of all sizes around a vector's: ``A B``, ``A U'`` and the update ``C - T'U'/2``."""
    columns, local = [], []
    for n, k in SIDES:
        columns += [_drawn(1, 1, *shape, seed=i) for i, shape in enumerate([(m, k), (k, n), (k, m), (n, k)])]
        local.append(_drawn(1, m, n, seed=5))

    def step(held: Any, shared: Any, data: Any) -> list[Tensor]:
        after, total = [], 0.0
        for i, c in enumerate(held):
            a, b, t, u = data[4 * i : 4 * i + 4]
            after.append(c - 0.5 * (t.t() @ u.t()))
            total = total + (a @ b).sum() + (a @ u.t()).sum()
        return [*after, total]

    got, losses = _steps(step, local, [], columns)
    *after, loss = step([c[0].double() for c in local], [], [v[0, 0].double() for v in columns])
    for found, wanted in zip(got, after, strict=True):
        torch.testing.assert_close(found[0].double(), wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(losses[0].double(), loss, rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_a_long_program_gives_the_bits_of_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements and products that share functions add up as those that know their sizes."""
    local = [_drawn(1, *shape) for shape in [(5, 66), (5, 66), (37,), (20,), (3, 4)]]
    columns = [_drawn(1, 2, *shape, seed=2) for shape in [(7, 35), (7, 66), (5, 35)]]

    def step(held: Any, shared: Any, data: Any) -> list[Tensor]:
        a, b, c = data
        product, inner = c @ (a.t() @ b), (a @ c.t()).sum()
        made = [held[0] - 0.1 * product, held[1] - 0.1 * (product + held[0])]
        return [*made, *(0.5 * leaf.exp() - leaf for leaf in held[2:]), inner + product.tanh().sum()]

    found = []
    for most in (10**6, 0):
        monkeypatch.setattr("atoll.torch.native.program._LONG", most)
        leaves, losses = _steps(step, local, [], columns)
        found.append([*leaves, losses])
    for short, long in zip(*found, strict=True):
        assert torch.equal(short, long)


def test_statements_that_differ_in_buffers_or_entries_share_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def copied(to: str, source: str, n: int) -> CodeStatement:
        return CodeStatement(
            (f"for (int i = 0; i < {n}; ++i) {to}[i] = {source}[i];",),
            n,
            (f"for (int i = 0; i < n; ++i) {to}[i] = {source}[i];",),
        )

    alone = CodeStatement(("t0[0] = x1[0] + 1.0f;",))
    lines = [copied("t0", "x1", 9), copied("t1", "t0", 70), "memset(t0, 0, 36);", alone, copied("t0", "k2", 9)]
    body = Body(list(lines), types={"t0": "float", "t1": "float", "k2": "const float"})
    assert share({"step": body}, {"x1": "float"})[0] == []
    monkeypatch.setattr("atoll.torch.native.program._LONG", 4)
    (function,), written = share({"step": body}, {"x1": "float"})
    assert function == (
        "APART void same0(int n, i64& bad, float* __restrict a0, float* __restrict a1) {\n(void)n; (void)bad;\n"
        "for (int i = 0; i < n; ++i) a0[i] = a1[i];\n}"
    )
    constant = "for (int i = 0; i < 9; ++i) t0[i] = k2[i];"  # of another type
    assert written["step"] == [
        "same0(9, bad, t0, x1);",
        "same0(70, bad, t1, t0);",
        "memset(t0, 0, 36);",
        "t0[0] = x1[0] + 1.0f;",
        constant,
    ]


def test_products_of_a_stack() -> None:
    a, b = _drawn(2, 3, 4, 5, 6), _drawn(2, 3, 4, 7, 6, seed=2)
    step = lambda held, shared, data: [held[0] + torch.bmm(data[0], data[1].mT), held[0].sum() * shared[0]]  # noqa: E731
    got, losses = _steps(step, [torch.ones(2, 4, 5, 7)], [torch.tensor(2.0)], [a, b])
    torch.testing.assert_close(got[0], 1 + (a @ b.mT).sum(1))
    torch.testing.assert_close(losses, 2 * (3 * 140 + (2 * (a @ b.mT)[:, 0] + (a @ b.mT)[:, 1]).sum((1, 2, 3))))


def _chosen(model: nn.Module, algorithm: Any, **settings: Any) -> LocalTraining:
    uneven = settings.pop("uneven", True)
    form = {"widths": [algorithm.batch_size], "stretch": 1024, "uneven": uneven}
    return LocalTraining(model, algorithm, choices={"mode": "vector", "block": 3, "native": True, **form}, **settings)


def _natives(training: LocalTraining) -> list[Any]:
    assert training._runner is not None
    of_blocks = [made for block in training._runner._blocks.values() for made in block._native.values()]
    return [*of_blocks, *training._runner.natives._made.values()]


class Attending(nn.Module):
    """An embedding, and attention of two heads over six tokens: once with a causal mask, once in a layer of PyTorch's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.last = nn.Embedding(20, 8), nn.Linear(8, 4)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, activation="gelu", batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed((x.abs() * 5).to(torch.int64).clamp(max=19))
        heads = tokens.reshape(-1, 6, 2, 4).transpose(1, 2)
        seen = nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return self.last(self.layer(tokens + seen.transpose(1, 2).reshape(-1, 6, 8)).mean(1))


MODELS: dict[str, Any] = {
    "linear": (lambda: nn.Linear(6, 4), {}),
    "dropout": (Dropped, {}),
    "tanh": (lambda: nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 4), nn.Sigmoid()), {}),
    "norm": (lambda: nn.Sequential(nn.Linear(6, 9), nn.LayerNorm(9), nn.GELU(), nn.Linear(9, 4), nn.SiLU()), {}),
    "attention": (Attending, {}),
    "hinge": (lambda: nn.Linear(6, 4), {"loss": "multiclass_hinge"}),
}


# Each is a program of its own to compile.
@pytest.mark.quick("norm")
@pytest.mark.parametrize("name", list(MODELS))
def test_models_train_as_the_reference_does(name: str) -> None:
    make, settings = MODELS[name]
    model = seeded(make)
    training = _chosen(model, FedAvg(epochs=2, batch_size=5), **settings)
    assert compare(training, shards_of([7, 4, 12, 0], (6,)), broadcast_of(model)) < 1e-5
    made = _natives(training)
    assert len(made) == 2
    assert [type(m) for m in made] == [NativeSteps, NativeCohort]


CORRECTED: dict[str, Any] = {
    "SCAFFOLD": (Scaffold(epochs=2, batch_size=5), "control", "control"),
    "FedDyn": (FedDyn(epochs=2, batch_size=5, alpha=0.1), "h", "slope"),
}


@pytest.mark.quick("SCAFFOLD")
@pytest.mark.parametrize("name", list(CORRECTED))
def test_corrected_gradients_go_into_the_weights_as_in_the_reference(name: str) -> None:
    algorithm, sent, kept = CORRECTED[name]
    model = seeded(lambda: nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)))
    params = broadcast_of(model)["params"]
    states = [{kept: T.map(lambda leaf, s=sign: s * 0.1 * np.cos(leaf), params)} for sign in (1.0, -2.0, 0.5)]
    training = _chosen(model, algorithm)
    broadcast = broadcast_of(model, **{sent: T.map(np.sin, params)})
    assert compare(training, shards_of([7, 4, 12], (6,)), broadcast, states) < 1e-5
    assert [type(m) for m in _natives(training)] == [NativeSteps, NativeCohort]


@pytest.mark.slow
def test_like_clients_with_whole_batches() -> None:
    model = seeded(lambda: nn.Linear(6, 4))
    training = _chosen(model, FedAvg(epochs=2, batch_size=5), uneven=False)
    assert compare(training, shards_of([10, 10, 10, 10], (6,)), broadcast_of(model)) < 1e-5
    assert all(made is not None and not getattr(made, "weighted", False) for made in _natives(training))


@pytest.mark.slow
def test_one_client_at_a_time_too() -> None:
    model = seeded(lambda: nn.Linear(6, 4))
    training = LocalTraining(model, FedAvg(batch_size=5), choices={"mode": "single", "native": True})
    assert compare(training, shards_of([10, 5, 7], (6,)), broadcast_of(model)) < 1e-5
    assert _natives(training)


def test_convolutions_and_double_precision_are_left_to_pytorch() -> None:
    model = seeded(lambda: Images(nn.GroupNorm(2, 4)))
    training = _chosen(model, FedAvg(batch_size=5))
    assert compare(training, shards_of([5, 5], (1, 8, 8)), broadcast_of(model)) < 1e-4
    assert set(_natives(training)) == {None}
    step = lambda w, x: [w - x[0], w.sum()]  # noqa: E731
    assert make_native(step, [torch.zeros(3).double()], [], [torch.zeros(1, 3).double()], []) is None


@pytest.mark.network
def test_without_a_working_compiler_pytorchs_programs_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(native_library, "cpp_compiler", lambda: str(broken))
    model = seeded(lambda: nn.Linear(6, 4))
    training = _chosen(model, FedAvg(batch_size=5))
    assert compare(training, shards_of([5, 5], (6,)), broadcast_of(model)) < 1e-5
    assert set(_natives(training)) == {None}


def test_one_switch_turns_native_code_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_NATIVE", "0")
    model = seeded(lambda: nn.Linear(6, 4))
    training = _chosen(model, FedAvg(batch_size=5))
    assert compare(training, shards_of([5, 5], (6,)), broadcast_of(model)) < 1e-5
    assert set(_natives(training)) == {None}
    step = lambda w, x: [w - x[0], w.sum()]  # noqa: E731
    assert make_native(step, [torch.zeros(3)], [], [torch.zeros(1, 3)], []) is None
    monkeypatch.setenv("ATOLL_NATIVE", "no")
    with pytest.raises(ConfigError, match="ATOLL_NATIVE='no'"):
        enabled()


def test_a_look_up_outside_is_an_error_not_a_wild_read() -> None:
    x, n = _drawn(1, 1, 2, 3), torch.full((1, 1, 2, 1), 3)
    with pytest.raises(IndexError, match="looked up an entry that does not exist"):
        _steps(lambda held, shared, data: [held[0], data[0].gather(1, data[1]).sum()], [torch.zeros(1, 2)], [], [x, n])


def test_a_client_whose_update_is_not_finite_is_named() -> None:
    model = seeded(lambda: nn.Linear(6, 4))
    training = _chosen(model, FedAvg(batch_size=5))
    shards = shards_of([5, 5, 5], (6,))
    shards[1][0][2, 3] = np.nan
    made = training.many_sum(shards, broadcast_of(model), None, keys_of(3))
    assert list(made.rejected) == [1]
    assert "training loss (nan)" in made.rejected[1]
    assert all(np.isfinite(v).all() for v in made.totals["update"].value.values())
