"""With one client, full batches and plain SGD, a training is an ordinary PyTorch loop: parameters, buffers, types, and what the model predicts.

The oracle is PyTorch itself. Weights are drawn once, by a factory under a seed, or by the first pass of lazy layers.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import atoll
from atoll.core.errors import CompositionError, DataError
from atoll.torch.learner import seeded
from atoll.torch.models import copy_module, shape_module

LR, ROUNDS, WIDTH = 0.2, 4, 16
rng = np.random.default_rng(0)
X = (rng.normal(size=(24, WIDTH)) + 1).astype(np.float32)
Y = (X[:, 0] > 1).astype(np.int64)


class Of(nn.Module):
    """A layer between two linear ones; ``take`` picks its output, ``give`` forms its input."""

    def __init__(self, layer: nn.Module, out: int, give: Any = None, take: Any = None) -> None:
        super().__init__()
        self.layer, self.last = layer, nn.Linear(out, 2)
        self.give, self.take = give or (lambda x: x), take or (lambda made: made)

    def forward(self, x: Any) -> Any:
        return self.last(self.take(self.layer(self.give(x))).flatten(1))


def images(x: Any) -> Any:
    return x.view(-1, 1, 4, 4)


def series(x: Any) -> Any:
    return x.view(-1, 4, 4)


def words(x: Any) -> Any:
    return (x.abs() * 3).long().clamp(max=9)


def packed(x: Any) -> Any:
    lengths = 4 - (x[:, 0] > 1).long().cpu()
    return nn.utils.rnn.pack_padded_sequence(series(x), lengths, batch_first=True, enforce_sorted=False)


def ends(made: Any) -> Any:
    state = made[1][0] if isinstance(made[1], tuple) else made[1]
    return state.transpose(0, 1)


def unpacked(made: Any) -> Any:
    return nn.utils.rnn.pad_packed_sequence(made[0], batch_first=True, total_length=4)[0]


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.last = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(16, 2)

    def forward(self, x: Any) -> Any:
        x = series(x)
        return self.last(self.attention(x, x, x, need_weights=False)[0].flatten(1))


class Tied(nn.Module):
    """A decoder that is the encoder turned round, and a bias under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.back, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        self.back.weight, self.back.bias = self.code.weight, self.code.bias

    def forward(self, x: Any) -> Any:
        return self.last(self.back(torch.tanh(self.code(x))))


class Twice(nn.Module):
    """One normalisation, used twice in a pass, under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(WIDTH, momentum=None), nn.Linear(WIDTH, 2)
        self.again = self.norm

    def forward(self, x: Any) -> Any:
        return self.last(self.again(torch.tanh(self.norm(x))))


class Partly(nn.Module):
    """A parameter without a gradient, one that is not trained, and lists of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.ParameterList([nn.Parameter(torch.randn(WIDTH, 2)), nn.Parameter(torch.zeros(2))])
        self.unused = nn.ParameterDict({"one": nn.Parameter(torch.ones(3))})
        self.fixed = nn.Parameter(torch.full((2,), 2.0), requires_grad=False)

    def forward(self, x: Any) -> Any:
        return (x @ self.used[0] + self.used[1]) * self.fixed


class Masked(nn.Module):
    """Buffers of -inf and of flags that nothing changes, beside statistics: only these travel."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 2)
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf] * 8))
        self.register_buffer("flags", torch.tensor([True, False] * 8))

    def forward(self, x: Any) -> Any:
        return self.last(torch.softmax(self.norm(x) + self.mask, 1) * self.flags)


class Settled(nn.Module):
    """A normalisation that stays in evaluation mode while the rest trains."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 2)

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Any) -> Any:
        return self.last(self.norm(x))


class Counting(nn.Module):
    """Whole numbers, flags and averages that are written in place, past autograd, by assignment, and saved or not."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(WIDTH, 2)
        for name, value, saved in (
            ("steps", torch.tensor(0), True),
            ("few", torch.tensor(0, dtype=torch.uint8), True),
            ("begun", torch.tensor(False), True),
            ("one", torch.zeros(WIDTH), True),
            ("two", torch.zeros(WIDTH), True),
            ("three", torch.zeros(WIDTH), False),
        ):
            self.register_buffer(name, value, persistent=saved)

    def forward(self, x: Any) -> Any:
        if self.training:
            new = x.detach().mean(0)
            if not self.begun:
                self.begun.fill_(True)
            self.steps += 1
            self.few.add_(1)
            self.one = 0.9 * self.one + 0.1 * new
            self.two.data.mul_(0.9).add_(0.1 * new)
            self.three.mul_(0.9).add_(0.1 * new)
        return self.last(x - (self.one + self.two + self.three) / 3) * torch.clamp(self.steps / 10, max=1.0)


class Saving(nn.Module):
    """Computes a part of its pass again in the backward pass."""

    def __init__(self, reentrant: bool = False, dropout: float = 0.0, plain: bool = False) -> None:
        super().__init__()
        self.part, self.last = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Dropout(dropout)), nn.Linear(8, 2)
        self.first, self.reentrant, self.plain = nn.Linear(WIDTH, WIDTH), reentrant, plain

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        return self.last(self.part(x) if self.plain else checkpoint(self.part, x, use_reentrant=self.reentrant))


class Weighed(torch.autograd.Function):
    """Scales a gradient by a weight that it reads from the layer."""

    @staticmethod
    def forward(ctx: Any, x: Any, layer: Any) -> Any:
        ctx.layer = layer
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        return slopes[0] * ctx.layer.weight.norm(), None


class LooksBack(nn.Module):
    """Reads weights in the backward pass, by a hook or by a function of its own."""

    def __init__(self, hook: bool) -> None:
        super().__init__()
        self.first, self.last, self.hook = nn.Linear(WIDTH, 8), nn.Linear(8, 2), hook
        if hook:
            self.last.register_full_backward_hook(lambda layer, down, up: (down[0] * layer.weight.norm(),))

    def forward(self, x: Any) -> Any:
        h = torch.tanh(self.first(x))
        return self.last(h if self.hook else Weighed.apply(h, self.last))  # type: ignore[no-untyped-call]


class Passing(nn.Linear):
    """Passes the question of its length on, to what has none."""

    def __len__(self) -> int:
        return len(self.weight[0, 0])


def plainly(make: Callable[[nn.Module], nn.Module], layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the hooks are old, and still used
        return make(layer)


def sequence(*layers: nn.Module, out: int = WIDTH) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(out, 2))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "Linear": lambda: nn.Linear(WIDTH, 2),
    "a module without a length": lambda: Passing(WIDTH, 2),
    "layers": lambda: sequence(nn.Linear(WIDTH, 8, bias=False), nn.PReLU(), nn.Linear(8, 8), nn.GELU(), out=8),
    "Bilinear": lambda: _Bilinear(),
    "Conv2d": lambda: sequence(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 2, 3, padding=1), nn.MaxPool2d(2), out=8),
    "ConvTranspose2d": lambda: sequence(nn.Unflatten(1, (1, 4, 4)), nn.ConvTranspose2d(1, 1, 2), out=25),
    "Conv1d in groups": lambda: sequence(nn.Unflatten(1, (4, 4)), nn.Conv1d(4, 4, 2, groups=4), out=12),
    "BatchNorm1d": lambda: sequence(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)),
    "BatchNorm1d(momentum=None)": lambda: sequence(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH, momentum=None)),
    "BatchNorm1d(affine=False)": lambda: sequence(nn.BatchNorm1d(WIDTH, affine=False)),
    "BatchNorm1d without statistics": lambda: sequence(nn.BatchNorm1d(WIDTH, track_running_stats=False)),
    "BatchNorm2d": lambda: sequence(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), out=32),
    "InstanceNorm1d": lambda: sequence(nn.Unflatten(1, (4, 4)), nn.InstanceNorm1d(4, track_running_stats=True)),
    "a settled BatchNorm1d": Settled,
    "a shared BatchNorm1d": Twice,
    "LayerNorm": lambda: sequence(nn.LayerNorm(WIDTH)),
    "GroupNorm": lambda: sequence(nn.GroupNorm(4, WIDTH)),
    "RMSNorm": lambda: sequence(nn.RMSNorm(WIDTH)),
    "LocalResponseNorm": lambda: sequence(nn.Unflatten(1, (4, 4)), nn.LocalResponseNorm(2)),
    "Embedding": lambda: Of(nn.Embedding(10, 2, padding_idx=0), 32, words),
    "EmbeddingBag": lambda: Of(nn.EmbeddingBag(10, 3), 3, words),
    "RNN": lambda: Of(nn.RNN(4, 3, batch_first=True), 3, series, ends),
    "GRU": lambda: Of(nn.GRU(4, 3, batch_first=True), 3, series, ends),
    "LSTM": lambda: Of(nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True), 12, series, ends),
    "LSTM(proj_size)": lambda: Of(nn.LSTM(4, 3, proj_size=2, batch_first=True), 2, series, ends),
    "a packed RNN": lambda: Of(nn.RNN(4, 3, batch_first=True), 3, packed, ends),
    "a packed GRU": lambda: Of(nn.GRU(4, 3, batch_first=True, bidirectional=True), 24, packed, unpacked),
    "a packed LSTM": lambda: Of(nn.LSTM(4, 3, num_layers=2, batch_first=True), 6, packed, ends),
    "MultiheadAttention": Attends,
    "TransformerEncoderLayer": lambda: Of(nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), 16, series),
    "tied weights": Tied,
    "spectral norm": lambda: sequence(nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, 4)), out=4),
    "spectral norm by a hook": lambda: sequence(plainly(nn.utils.spectral_norm, nn.Linear(WIDTH, 4)), out=4),
    "weight norm": lambda: sequence(nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, 4)), out=4),
    "weight norm by a hook": lambda: sequence(plainly(nn.utils.weight_norm, nn.Linear(WIDTH, 4)), out=4),
    "orthogonal": lambda: sequence(nn.utils.parametrizations.orthogonal(nn.Linear(WIDTH, 4)), out=4),
    "parameters in part": Partly,
    "masks beside statistics": Masked,
    "counters and averages": Counting,
    "checkpoint": Saving,
    "reentrant checkpoint": lambda: Saving(reentrant=True),
    "a hook that reads weights": lambda: LooksBack(hook=True),
    "a function that reads weights": lambda: LooksBack(hook=False),
    "float64": lambda: sequence(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4, momentum=None), out=4).double(),
    "lazy layers": lambda: nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.LazyLinear(2)),
}


class _Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(WIDTH, WIDTH, 2)

    def forward(self, x: Any) -> Any:
        return self.layer(x, torch.tanh(x))


def ordinary(model: nn.Module) -> nn.Module:
    made = copy_module(model).train()
    optimiser = torch.optim.SGD([p for p in made.parameters() if p.requires_grad], lr=LR)
    x = torch.tensor(X).to(next(made.parameters()).dtype)
    for _ in range(ROUNDS):
        optimiser.zero_grad()
        nn.functional.cross_entropy(made(x), torch.tensor(Y)).backward()
        optimiser.step()
    return made.eval()


def trained(model: Any, engine: str = "inline") -> Any:
    parts = {"algorithm": atoll.FedAvg(lr=LR, batch_size=None), "selection": atoll.Everyone(), "rounds": ROUNDS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # "is trained client by client"
        data = {"only": atoll.data.Dataset({"x": X, "y": Y}, classes=2)}
        return atoll.simulate(atoll.Training(model=model, **parts), data, engine=engine, progress=False)


@pytest.mark.every(4)
@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("engine", ["inline", pytest.param("batched", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MODELS)
def test_one_client_is_an_ordinary_loop(name: str, engine: str) -> None:
    model = seeded(lambda: shape_module(MODELS[name](), torch.tensor(X)), 0)
    got, want = trained(model, engine).model, ordinary(model)
    ours = dict(got.named_buffers()) | dict(got.named_parameters())
    for key, value in (dict(want.named_buffers()) | dict(want.named_parameters())).items():
        assert ours[key].dtype == value.dtype
        np.testing.assert_allclose(ours[key].detach().numpy(), value.detach().numpy(), atol=1e-5, err_msg=key)
    x = torch.tensor(X).to(next(want.parameters()).dtype)
    tolerance = 1e-9 if x.dtype == torch.float64 else 1e-5
    np.testing.assert_allclose(got(x).detach().numpy(), want(x).detach().numpy(), atol=tolerance)


@pytest.mark.parametrize("name", ["checkpoint", "a hook that reads weights"])
def test_a_backward_pass_has_the_weights_of_its_pass(name: str) -> None:
    test_one_client_is_an_ordinary_loop(name, "inline")


@pytest.mark.parametrize("engine", ["inline", "batched"])
def test_what_a_checkpoint_drops_stays_dropped(engine: str) -> None:
    saving, plain = (
        trained(seeded(lambda plain=plain: Saving(dropout=0.5, plain=plain), 0), engine).params
        for plain in (False, True)
    )
    for name, value in plain.items():
        np.testing.assert_allclose(saving[name], value, atol=1e-6)


def test_a_backward_pass_that_reads_weights_is_no_pass_of_single_examples() -> None:
    job = atoll.Training(
        model=seeded(lambda: LooksBack(hook=True), 0),
        algorithm=atoll.algorithms.DPSGD(atoll.FedAvg(steps=1), clip=1.0, noise=1.0, rate=1.0),
        selection=atoll.Everyone(),
        rounds=1,
    )
    with pytest.raises(CompositionError, match=r"reads weights from the model.*write what the hook does into forward"):
        atoll.simulate(job, {"only": atoll.data.Dataset({"x": X, "y": Y}, classes=2)}, progress=False)


@pytest.mark.parametrize("given", ["the model", "a factory"])
def test_lazy_layers_take_their_shapes_from_the_data(given: str) -> None:
    lazy = MODELS["lazy layers"]()
    model = lazy if given == "the model" else MODELS["lazy layers"]
    one, again = trained(model), trained(model)
    assert one.params["0.weight"].shape == (4, WIDTH)
    for name, value in one.params.items():
        np.testing.assert_array_equal(again.params[name], value)
    assert one.metrics[-1]["loss"] < one.metrics[0]["loss"]
    assert nn.parameter.is_lazy(lazy[0].weight)  # the model that was given is not changed


class Growing(nn.Module):
    """Lazy, and takes no rows of this width."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 4), nn.LazyLinear(2)

    def forward(self, x: Any) -> Any:
        return self.last(self.first(x))


def test_lazy_layers_without_a_first_pass_are_refused() -> None:
    with pytest.raises(
        DataError, match=r"Growing has lazy layers.*shapes cannot be multiplied.*call the model once on a few rows"
    ):
        trained(Growing)
    with pytest.raises(DataError, match=r"lazy layers.*no rows whose form is known"):
        atoll.torch.LocalTraining(MODELS["lazy layers"](), atoll.FedAvg())


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("engine", ["inline", "batched"])
def test_a_model_of_few_bits_trains_in_single_precision_and_says_so(low: torch.dtype, engine: str) -> None:
    model = seeded(MODELS["BatchNorm1d"], 0).to(low)
    made, want = trained(model, engine), ordinary(copy.deepcopy(model).float())
    assert {p.dtype for p in made.model.parameters()} == {low}
    for name, value in want.named_parameters():
        np.testing.assert_allclose(made.params[name], value.detach().numpy(), atol=1e-5)
    assert f"parameters of {str(low).removeprefix('torch.')} are trained and measured in float32" in " ".join(
        made.notices
    )


def test_complex_numbers_are_refused() -> None:
    model = seeded(MODELS["Linear"], 0)
    model.register_buffer("phase", torch.ones(2, dtype=torch.complex64))
    with pytest.raises(DataError, match=r"'phase' of the model Linear has complex numbers.*view_as_real"):
        trained(model)


@pytest.mark.parametrize("given", ["a model", "a factory", "a loop"])
@pytest.mark.parametrize("what", ["scripted", "a scripted layer", "traced", "compiled", "on several devices"])
def test_what_is_no_python_module_is_refused(what: str, given: str) -> None:
    plain, place = seeded(lambda: nn.Linear(WIDTH, 2), 0), "the model"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # later versions of PyTorch turn away from scripts
        made, said = {
            "scripted": lambda: (torch.jit.script(plain), "scripted or traced by torch.jit.*result.model"),
            "a scripted layer": lambda: (nn.Sequential(torch.jit.script(plain)), "scripted or traced.*Python module"),
            "traced": lambda: (torch.jit.trace(plain, torch.zeros(2, WIDTH)), "scripted or traced.*torch.jit.trace"),
            "compiled": lambda: (torch.compile(plain), "compiled by torch.compile.*_orig_mod"),
            "on several devices": lambda: (nn.DataParallel(plain), "wrapped in DataParallel.*attribute module"),
        }[what]()
    if what == "a scripted layer":
        place = "the layer '0'"
    model = {"a model": made, "a factory": lambda: made, "a loop": atoll.torch.CustomLoop(made, lambda *given: None)}
    with pytest.raises(CompositionError, match=rf"^{place} is {said}"):
        trained(model[given])
