"""What a model keeps beside its parameters and buffers: no client begins with what another left, in any order, on any engine."""

from __future__ import annotations

import copy
import functools
import itertools
import pickle
import random
import re
from collections import OrderedDict, defaultdict, deque
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import atoll
from atoll.core.errors import CompositionError
from atoll.data import Dataset
from atoll.torch import CustomLoop
from atoll.torch.learner import seeded
from atoll.torch.models import copy_owned
from atoll.torch.network import FunctionalModule
from atoll.torch.own_state import OwnState
from atoll.torch.shared_state import SharedState

Tensor = torch.Tensor


class Helper:
    def __init__(self) -> None:
        self.n = 0
        self.total = np.zeros(3)


class Slotted:
    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0


class Hoarder(nn.Module):
    """Has one attribute of every kind."""

    calls = 0
    seen: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.inner = nn.Sequential(nn.ReLU())
        self.inner.c = None
        self.number, self.text, self.empty, self.moving = 0, "a", None, torch.zeros(3)
        self.array, self.items, self.named = np.zeros(3), [1], {"mean": torch.zeros(3)}
        self.ordered = OrderedDict(a=1, b=2)
        self.counts, self.unique, self.last = defaultdict(int), {1}, deque([1.0], maxlen=2)
        self.helper, self.slotted = Helper(), Slotted()
        self.drawn, self.older, self.python = np.random.default_rng(1), np.random.RandomState(1), random.Random(1)
        self.nested = ([1], {"deep": [Helper()]})

    def forward(self, x: Any) -> Any:
        return self.linear(x)


def _change_class(model: Any) -> None:
    type(model).calls += 1


CHANGES: dict[str, Any] = {
    "inner.c": lambda m: setattr(m.inner, "c", 1),
    "number": lambda m: setattr(m, "number", m.number + 1),
    "text": lambda m: setattr(m, "text", "b"),
    "empty": lambda m: setattr(m, "empty", torch.ones(2)),
    "moving": lambda m: m.moving.add_(1),
    "array": lambda m: m.array.__iadd__(1),
    "items": lambda m: m.items.append(2),
    "named": lambda m: m.named["mean"].add_(1),
    "ordered": lambda m: m.ordered.move_to_end("a"),
    "counts": lambda m: m.counts["a"],
    "unique": lambda m: m.unique.add(2),
    "last": lambda m: m.last.append(2.0),
    "helper": lambda m: m.helper.total.__iadd__(1),
    "slotted": lambda m: setattr(m.slotted, "n", 3),
    "drawn": lambda m: m.drawn.normal(),
    "older": lambda m: m.older.normal(),
    "python": lambda m: m.python.random(),
    "nested": lambda m: m.nested[1]["deep"][0].total.__iadd__(1),
    "late": lambda m: setattr(m, "late", 1),
    "Hoarder.calls": _change_class,
    "Hoarder.seen": lambda m: m.seen.append(1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_kind_of_attribute_is_found_and_put_back(name: str) -> None:
    own = OwnState(*copy_owned(seeded(Hoarder, 0)))
    assert own.list_changes() == []
    CHANGES[name](own.module)
    assert own.list_changes() == [name]
    own.restore()
    assert own.list_changes() == []
    assert type(own.module).calls == 0
    assert type(own.module).seen == []


class Leaky(nn.Module):
    """Scales by what it has counted, in several places, and keeps its first mean."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.items, self.helper, self.named, self.mean = [], Helper(), {"mean": torch.zeros(3)}, None

    def forward(self, x: Any) -> Any:
        if self.training:
            self.items.append(1)
            self.helper.n += 1
            self.named["mean"] = 0.9 * self.named["mean"] + 0.1 * x.mean(0).detach()
            if self.mean is None:
                self.mean = x.mean(0).detach()
        first = 0.0 if self.mean is None else self.mean
        return self.linear(x - first - self.named["mean"]) * (1 + len(self.items) + self.helper.n) / 4


class Cached(nn.Module):
    """Centres by the first mean that it measures."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.mean = None

    def forward(self, x: Any) -> Any:
        if self.training:
            return self.linear(x)
        self.mean = x.mean(0) if self.mean is None else self.mean
        return self.linear(x - self.mean)


class Mixed(nn.Module):
    """Draws from NumPy's and Python's generators, as mixup often does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        return self.linear(x) * float(np.random.beta(2, 2) + random.random())  # noqa: NPY002 - what users do


class Teacher(nn.Module):
    """Follows its layer in a copy that no registry knows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.copies = [copy.deepcopy(self.linear)]

    def forward(self, x: Any) -> Any:
        if self.training:
            with torch.no_grad():
                self.copies[0].weight.mul_(0.5).add_(self.linear.weight, alpha=0.5)
        return self.linear(x) + self.copies[0](x).detach()


class Hooked(nn.Module):
    """A hook's closure holds the module as it was given, which every copy shares."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.seen = nn.Linear(3, 2), []
        self.linear.register_forward_hook(lambda module, given, output: self.count(output))

    def count(self, output: Any) -> Any:
        self.seen.append(output.detach())
        return output * len(self.seen) / 4

    def forward(self, x: Any) -> Any:
        return self.linear(x)


class Masked(nn.Module):
    """Caches a tensor, which belongs to the pass that made it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    @functools.lru_cache  # noqa: B019 - what users do
    def mask(self, n: int) -> Any:
        return torch.ones(n)

    def forward(self, x: Any) -> Any:
        return self.linear(x * self.mask(x.shape[1]))


class Annealed:
    """A loss that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        return F.cross_entropy(output, target, reduction="none") / self.calls


def _table(seed: int, rows: int) -> Dataset:
    rng = np.random.default_rng(seed)
    return Dataset({"x": (rng.normal(size=(rows, 3)) + seed).astype(np.float32), "y": rng.integers(0, 2, rows)})


def _train(
    model: nn.Module, order: str, engine: str, loss: Any = "auto"
) -> tuple[dict[str, np.ndarray], list[float], Any]:
    data = {"a": _table(1, 9), "b": _table(2, 14)}
    job = atoll.Training(
        model=model,
        loss=loss,
        algorithm=atoll.FedAvg(lr=0.1, epochs=2, batch_size=4),
        selection=atoll.Everyone(),
        rounds=2,
        evaluation=atoll.Evaluation(clients=-1),
    )
    state = np.random.get_state()  # noqa: NPY002 - the one that users draw from
    np.random.seed(len(engine) + ord(order[0]))  # noqa: NPY002 - as above
    made = atoll.simulate(job, {name: data[name] for name in order}, engine=engine, progress=False)
    np.random.set_state(state)  # noqa: NPY002 - as above
    values = dict(zip(order, made.metrics[-1]["clients/loss/values"], strict=True))
    return made.params, [values["a"], values["b"]], made


@pytest.mark.filterwarnings("ignore:.*is trained client by client:RuntimeWarning")
@pytest.mark.parametrize(
    ("make", "loss", "told"),
    [
        (Leaky, "auto", "Training changes attributes .* mean, items, .*register_buffer"),
        (Cached, "auto", ""),
        (Teacher, "auto", "Training changes attributes .* copies"),
        (Hooked, "auto", "Training changes attributes .* linear.hooks"),
        (Masked, "auto", "Training changes attributes .* Masked.mask"),
        (Mixed, "auto", ""),
        (lambda: nn.Linear(3, 2), Annealed(), "The loss changes state of its own"),
        (lambda: nn.Linear(3, 2), Annealed().__call__, "The loss changes state of its own"),
        (lambda: nn.Linear(3, 2), functools.partial(Annealed().__call__), "The loss changes state of its own"),
    ],
)
def test_no_order_and_no_engine_changes_a_result(make: Any, loss: Any, told: str) -> None:
    model = seeded(make, 0)
    (params, losses, made), *others = (
        _train(model, order, engine, loss) for order, engine in itertools.product(("ab", "ba"), ("inline", "batched"))
    )
    for other, values, _ in others:
        np.testing.assert_allclose(values, losses, atol=2e-5)
        for name, value in params.items():
            np.testing.assert_allclose(other[name], value, atol=1e-5)
    assert not told or any(re.match(told, notice) for notice in made.notices)


PASSES = 0
BOOK = {"calls": 0}


class Nested:
    class Inner:
        passes = 0


def _count_global() -> int:
    global PASSES
    PASSES += 1
    return PASSES


def _count_in_book() -> int:
    BOOK["calls"] += 1
    return BOOK["calls"]


def _count_default(calls: list[int] = []) -> int:  # noqa: B006 - as above
    calls.append(1)
    return len(calls)


def _count_attribute() -> int:
    _count_attribute.calls = getattr(_count_attribute, "calls", 0) + 1  # type: ignore[attr-defined]
    made: int = _count_attribute.calls  # type: ignore[attr-defined]
    return made


def _count_nested() -> int:
    Nested.Inner.passes += 1
    return Nested.Inner.passes


def _counting_closure() -> Any:
    calls = 0

    def count() -> int:
        nonlocal calls
        calls += 1
        return calls

    return count


SHARED = {
    "PASSES": _count_global,
    "BOOK": _count_in_book,
    "_count_default": _count_default,
    "_count_attribute": _count_attribute,
    "Nested.Inner": _count_nested,
    "count.calls": _counting_closure(),
}


class Counted(nn.Module):
    """Scales by a count that no client has for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        return self.linear(x) * (self.count() if self.training else 1)  # type: ignore[operator]


def _measured(count: Any) -> Any:
    def loss(output: Any, target: Any) -> Any:
        return F.cross_entropy(output, target) / count()

    return loss


@pytest.mark.filterwarnings("ignore:.*is trained client by client:RuntimeWarning")
@pytest.mark.parametrize("name", SHARED)
def test_what_clients_share_is_named_and_no_trial_changes_it(name: str) -> None:
    count = SHARED[name]
    kind = type("Counts", (Counted,), {"count": staticmethod(count), "__module__": __name__})

    def loop(model: Any, shard: Any, config: Any, rng: Any) -> None:
        model.weight.data.mul_(count())

    jobs = {
        "Training changes": {"model": seeded(kind, 0)},
        "The loss changes": {"model": seeded(lambda: nn.Linear(3, 2), 0), "loss": _measured(count)},
        "The training loop changes": {"model": CustomLoop(seeded(lambda: nn.Linear(3, 2), 0), loop)},
        "": {"model": seeded(lambda: nn.Linear(3, 2), 0)},
    }
    for told, parts in jobs.items():
        passes, before = atoll.FedAvg(batch_size=None), count()
        job = atoll.Training(**parts, algorithm=passes, selection=atoll.Everyone(), rounds=1)
        made = atoll.simulate(job, {"a": _table(1, 9)}, engine="inline", progress=False)
        said = [notice for notice in made.notices if "share, so that a result can depend on their order" in notice]
        assert [told for notice in said if notice.startswith(told) and name in notice] == ([told] if told else [])
        assert count() - before == (2 if told else 1)  # the one step counts, and no look


class Stepping(nn.Module):
    """Draws from an iterator, which nobody can put back."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.steps = nn.Linear(3, 2), itertools.count()

    def forward(self, x: Any) -> Any:
        return self.linear(x) * (next(self.steps) if self.training else 1)


@pytest.mark.filterwarnings("ignore:.*is trained client by client:RuntimeWarning")
def test_an_iterator_of_a_model_is_named() -> None:
    made = _train(seeded(Stepping, 0), "ab", "inline")[2]
    assert [n for n in made.notices if "share, so that a result can depend on their order: steps." in n]


def test_a_parameter_that_the_first_pass_makes_is_refused() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.last = nn.Linear(3, 2), None

        def forward(self, x: Any) -> Any:
            self.last = self.last or nn.Linear(2, 2)
            return self.last(self.linear(x))

    with pytest.raises(CompositionError, match=r"makes the parameter 'last.weight'.*LazyLinear"):
        _train(seeded(Late, 0), "ab", "inline")


def _loop(model: nn.Module, shard: Any, config: dict[str, Any], rng: np.random.Generator) -> None:
    del config, rng
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        F.cross_entropy(model(torch.tensor(shard.x)), torch.tensor(shard.y)).backward()
        optimiser.step()


class Kept(nn.Module):
    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.n = nn.Linear(3, 2), 0
        self.register_buffer("mean", torch.zeros(3), persistent=False)

    def forward(self, x: Any) -> Any:
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * x.mean(0).detach().to(self.mean)
            self.n += 1
            type(self).calls += 1
        return self.linear(x - self.mean) * (1 + self.n + type(self).calls) / 4


def test_a_loop_of_ones_own_keeps_buffers_that_are_not_saved_and_begins_with_first_attributes() -> None:
    def train(order: str) -> Any:
        data = {"a": _table(1, 9), "b": _table(2, 14)}
        job = atoll.Training(model=CustomLoop(seeded(Kept, 0), _loop), selection=atoll.Everyone(), rounds=2)
        return atoll.simulate(job, {name: data[name] for name in order}, progress=False)

    made, other = train("ab"), train("ba")
    for name, value in made.params.items():
        np.testing.assert_allclose(other.params[name], value, atol=1e-6)
    assert made.model.mean.abs().max() > 0.1
    assert "Buffers averaged over the clients: mean." in made.notices
    assert any("begins with their first values" in notice and "n, Kept.calls" in notice for notice in made.notices)


class Trainer:
    """A loop whose rate of learning grows from call to call, and which keeps things on the model."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, model: nn.Module, shard: Any, config: dict[str, Any], rng: np.random.Generator) -> None:
        del config, rng
        self.calls += 1
        optimiser = model.optimiser = torch.optim.SGD(model.parameters(), lr=0.1 * self.calls)
        F.cross_entropy(model(torch.tensor(shard.x)), torch.tensor(shard.y)).backward()
        optimiser.step()
        model.copies.append(copy.deepcopy(model.linear))


@pytest.mark.parametrize("bound", [False, True])
def test_a_loop_that_is_an_object_begins_with_its_first_values_and_says_what_is_lost(bound: bool) -> None:
    class Copied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.copies = nn.Linear(3, 2), list[nn.Module]()

        def forward(self, x: Any) -> Any:
            return self.linear(x)

    def train(order: str) -> Any:
        data, loop = {"a": _table(1, 9), "b": _table(2, 14)}, Trainer()
        own = CustomLoop(seeded(Copied, 0), loop.__call__ if bound else loop)
        job = atoll.Training(model=own, selection=atoll.Everyone(), rounds=2)
        return atoll.simulate(job, {name: data[name] for name in order}, progress=False)

    made, other = train("ab"), train("ba")
    for name, value in made.params.items():
        np.testing.assert_allclose(other.params[name], value, atol=1e-6)
    assert any(
        re.match("Training changes attributes .*: .*(optimiser.*copies|copies.*optimiser)", n) for n in made.notices
    )
    assert any(re.match("The training loop changes state of its own", notice) for notice in made.notices)


seen = list[int]()


class _Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        return self.linear(x)


class Logging(Trainer):
    """Writes, besides, what every client of its process shares."""

    def __call__(self, model: nn.Module, shard: Any, config: dict[str, Any], rng: np.random.Generator) -> None:
        seen.append(len(shard))
        model.copies = list[nn.Module]()
        super().__call__(model, shard, config, rng)


@pytest.mark.parametrize("reducer", ["none", pytest.param("masks", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "engine", ["processes", pytest.param("socket", marks=pytest.mark.slow), pytest.param("ray", marks=pytest.mark.slow)]
)
def test_what_a_loop_changes_in_a_worker_is_said_as_inline(engine: str, reducer: str) -> None:
    loop = CustomLoop(lambda: _Wrapped(), Logging())
    job = atoll.Training(model=loop, selection=atoll.Everyone(), rounds=1)
    job = job.replace(reducer=atoll.SecureAggregation()) if reducer == "masks" else job
    data = {name: _table(i, 9) for i, name in enumerate("abc")}
    made = [atoll.simulate(job, data, engine=each, progress=False) for each in ("inline", engine)]
    said = [each.notices for each in made]
    assert said[0] == said[1]
    for name, value in made[0].params.items():
        np.testing.assert_allclose(made[1].params[name], value, atol=1e-6)
    for what in ("attributes that are no buffers.*copies, optimiser", "state of its own", rf"share.*{__name__}.seen"):
        assert any(re.search(what, notice) for notice in said[1]), what


def test_first_values_are_found_again_in_another_process() -> None:
    """Ray sends learners; its processes have other objects behind every name."""
    loop, state = OwnState.of_loss(Logging())
    model: Any = seeded(lambda: nn.Linear(3, 2), 0)
    model.seen = {"rows": [1, 2]}
    network = FunctionalModule(model, "cross_entropy", torch.device("cpu"), torch.float32)
    loop, state, shared, network = pickle.loads(pickle.dumps((loop, state, SharedState([loop], state), network)))
    assert [each.list_changes() for each in (state, network.own, shared)] == [[], [], []]
    loop.calls, loop.more, before = 3, 1, len(seen)
    network.training.seen["rows"].append(3)
    network.training.other = 1
    seen.append(1)
    assert state.list_changes() == ["state of its own"]
    assert sorted(network.own.list_changes()) == ["other", "seen"]
    assert shared.list_changes() == [f"{__name__}.seen"]
    for each in (state, network.own, shared):
        each.restore()
    assert (vars(loop), len(seen)) == ({"calls": 0}, before)
    assert network.training.seen == {"rows": [1, 2]}
    assert not hasattr(network.training, "other")


def test_a_loop_of_ones_own_trains_and_measures_a_double_model_as_it_is() -> None:
    table = _table(1, 9)
    data = Dataset({"x": table["x"].astype(np.float64), "y": table["y"]})
    job = atoll.Training(
        model=CustomLoop(seeded(lambda: nn.Linear(3, 2), 0).double(), _loop), selection=atoll.Everyone(), rounds=1
    )
    made = atoll.simulate(job, {"a": data}, progress=False)
    assert made.params["weight"].dtype == np.float64
    assert not [notice for notice in made.notices if "float32" in notice]
