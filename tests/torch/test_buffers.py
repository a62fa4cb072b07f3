"""Buffers of a model: what a step writes is found by a step, and travels by one rule.

The oracle is plain PyTorch: with one client and full batches, R rounds of one epoch are R epochs of an ordinary loop.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll.core.errors import CompositionError, ConfigError
from atoll.mechanisms import ExampleDP, GaussianLDP
from atoll.torch import CustomLoop
from atoll.torch.learner import seeded
from atoll.torch.network import FunctionalModule, Held
from tests.support.part_examples import PARTS

LR, ROUNDS = 0.3, 5


class Warm(nn.Module):
    """A warm-up counted in a buffer of whole numbers."""

    def __init__(self, start: Any = 0) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("t", torch.tensor(start))

    def forward(self, x: Any) -> Any:
        if self.training:
            self.t += 1
        return self.linear(x) * torch.clamp(self.t / 10, max=1.0)


class Moving(nn.Module):
    """A moving average, written in one of the ways that people write it."""

    def __init__(self, how: str = "in place", *, persistent: bool = True) -> None:
        super().__init__()
        self.how = how
        self.linear = nn.Linear(3, 2)
        self.register_buffer("mean", torch.zeros(3), persistent=persistent)

    def forward(self, x: Any) -> Any:
        if self.training:
            new = x.mean(0).detach()
            if self.how == "in place":
                self.mean.mul_(0.9).add_(0.1 * new)
            elif self.how == "re-assigned":
                self.mean = 0.9 * self.mean + 0.1 * new
            else:
                self.mean.data.mul_(0.9).add_(0.1 * new)
        return self.linear(x - self.mean)


class Flagged(nn.Module):
    """Initialises itself on its first batch, as ActNorm does, and says so in a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("done", torch.tensor(False))
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x: Any) -> Any:
        if self.training and not self.done:
            self.scale.copy_(x.detach().std(0) + 1e-3)
            self.done.fill_(True)
        return self.linear(x / self.scale)


class Ring(nn.Module):
    """A queue and its pointer, which turns back to 0, as MoCo has them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("queue", torch.zeros(3, 3))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Any) -> Any:
        if self.training:
            self.queue[int(self.at)] = x.mean(0).detach()
            self.at[0] = (self.at[0] + 1) % 3
        return self.linear(x - self.queue.mean(0))


class Momentum(nn.Module):
    """A second network of parameters that are not trained, which follows the first."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.slow = nn.Linear(3, 2), nn.Linear(3, 2)
        self.slow.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        if self.training:
            for mine, theirs in zip(self.slow.parameters(), self.linear.parameters(), strict=True):
                mine.mul_(0.5).add_(0.5 * theirs.detach())
        return self.linear(x) + self.slow(x)


class Shared(nn.Module):
    """One layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3, momentum=None)
        self.again = self.norm
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        return self.linear(self.again(self.norm(x)))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "BatchNorm": lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)),
    "BatchNorm(momentum=None)": lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, momentum=None), nn.Linear(3, 2)),
    "a counter": Warm,
    "a counter of floats": lambda: Warm(0.0),
    "an average in place": Moving,
    "an average re-assigned": lambda: Moving("re-assigned"),
    "an average past autograd": lambda: Moving("data"),
    "an average that is not saved": lambda: Moving("re-assigned", persistent=False),
    "a flag": Flagged,
    "a ring": Ring,
    "frozen parameters": Momentum,
    "a shared layer": Shared,
}  # fmt: skip


def rows(count: int = 24, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(count, 3)) * 2 + 1).astype(np.float32)
    return {"x": x, "y": (x[:, 0] > 1).astype(np.int64)}


def island(columns: dict[str, Any]) -> Any:
    return atoll.data.Dataset(columns, classes=2)


def plain(model: nn.Module, columns: dict[str, Any], steps: int = ROUNDS) -> nn.Module:
    """An ordinary loop on full batches."""
    made = copy.deepcopy(model).train()
    optimiser = torch.optim.SGD([p for p in made.parameters() if p.requires_grad], lr=LR)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(made(torch.tensor(columns["x"])), torch.tensor(columns["y"])).backward()
        optimiser.step()
    return made


def job(model: Any, **settings: Any) -> atoll.Training:
    parts = {"algorithm": atoll.FedAvg(lr=LR, batch_size=None), "selection": atoll.Everyone(), "rounds": ROUNDS}
    return atoll.Training(model=model, **{**parts, **settings})


def simulate(training: Any, data: Any, engine: str = "inline", **world: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # "is trained client by client"
        return atoll.simulate(training, data, engine=engine, progress=False, **world)


def require_same(got: nn.Module, want: nn.Module) -> None:
    """The same numbers of the same types, buffers that are not saved too."""
    ours = dict(got.named_buffers()) | dict(got.named_parameters())
    for name, value in (dict(want.named_buffers()) | dict(want.named_parameters())).items():
        assert ours[name].dtype == value.dtype
        np.testing.assert_allclose(ours[name].detach().numpy(), value.detach().numpy(), atol=2e-6, err_msg=name)


@pytest.mark.parametrize("engine", ["inline", "batched"])
@pytest.mark.parametrize("name", MODELS)
def test_one_client_is_an_ordinary_loop(name: str, engine: str) -> None:
    model = seeded(MODELS[name], 0)
    made = simulate(job(model), {"only": island(rows())}, engine)
    require_same(made.model, plain(model, rows()))
    assert "Buffers" in " ".join(made.notices)


def test_no_order_of_clients_decides_what_travels() -> None:
    model = seeded(Moving, 0)
    zeros = {"x": np.zeros((8, 3), np.float32), "y": np.array([0, 1] * 4)}
    one, none = ({name: value[:k] for name, value in rows(8, seed=2).items()} for k in (1, 0))
    clients = {"zeros": zeros, "one": one, "none": none, "many": rows(8, seed=1)}
    want = simulate(job(model), {name: island(clients[name]) for name in clients}).params
    assert set(want) >= {"mean"}
    for order in (["one", "none", "many", "zeros"], ["none", "many", "zeros", "one"], ["many", "zeros", "one", "none"]):
        got = simulate(job(model), {name: island(clients[name]) for name in order}).params
        for name, value in want.items():
            np.testing.assert_allclose(got[name], value, atol=1e-6, err_msg=f"{order}: {name}")


LOSSY: dict[str, Any] = {
    "TopK": atoll.stages.TopK(0.1), "QSGD": atoll.stages.QSGD(1), "Clip": atoll.stages.Clip(1e-3), "Sign": atoll.stages.Sign(),
    "RandomK": atoll.stages.RandomK(0.1, shared=True), "ErrorFeedback": atoll.stages.ErrorFeedback(atoll.stages.TopK(0.1)),
}  # fmt: skip


@pytest.mark.parametrize("engine", ["inline", "batched"])
@pytest.mark.parametrize("stage", LOSSY)
def test_no_stage_of_the_uplink_changes_a_statistic(stage: str, engine: str) -> None:
    """The oracle: statistics of a first layer are those of the rows, whatever becomes of the parameters."""
    clients = {name: island(rows(12, seed=seed)) for seed, name in enumerate("abc")}
    training = job(lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)), rounds=2)
    plain = simulate(training, clients, engine)
    lossy = simulate(training.replace(uplink=[LOSSY[stage]]), clients, engine)
    for name in ("0.running_mean", "0.running_var", "0.num_batches_tracked"):
        np.testing.assert_allclose(lossy.params[name], plain.params[name], rtol=1e-6)
    assert np.abs(lossy.params["1.weight"] - plain.params["1.weight"]).max() > 1e-4
    assert "Buffers are sent as they are: no stage of the uplink acts on them." in lossy.notices
    assert not any("sent as they are" in line for line in plain.notices)


def test_a_counter_is_the_largest_of_a_round() -> None:
    data = {"few": island(rows(8)), "many": island(rows(24, seed=1))}
    training = job(Warm, algorithm=atoll.FedAvg(lr=LR, batch_size=4), rounds=2)
    assert simulate(training, data).params["t"] == 2 * 6


def test_a_counter_under_masks_moves_by_the_mean_number_of_steps_rounded_up() -> None:
    data = {"few": island(rows(8)), "some": island(rows(12)), "many": island(rows(20, seed=1))}
    training = job(Warm, algorithm=atoll.FedAvg(lr=LR, batch_size=4), rounds=2, reducer=atoll.SecureAggregation())
    assert simulate(training, data).params["t"] == 2 * 4  # (2 + 3 + 5) / 3


def _counted() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(3, momentum=None), nn.Linear(3, 2))


SKIPPED = {"DefKT", "FedAP", "Hierarchical(together)", "Tiered", "HybridFL"}  # they need another setting, or no buffers


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("slot", "part"), [(slot, part) for slot in ("topology", "pacing") for part in PARTS[slot] if part not in SKIPPED]
)
def test_counters_stay_whole_with_every_topology_and_pacing(slot: str, part: str) -> None:
    data = atoll.data.iid(island(rows(72)), parties=6, seed=0)
    settings = {slot: PARTS[slot][part](), "rounds": 2, "algorithm": atoll.FedAvg(lr=LR, batch_size=6)}
    found = simulate(job(_counted, **settings), data).params["0.num_batches_tracked"]
    assert found.dtype == np.int64
    assert found % 2 == 0
    assert found > 0


# ---------------------------------------------------------------------- what is refused, and what a model may say


class Late(nn.Module):
    """Writes a buffer only on rows that the first client does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        if self.training and bool(x.min() < -50):
            self.seen.add_(1.0)
        return self.linear(x) + self.seen


class LateByRule(Late):
    buffer_rules: ClassVar = {"seen": "averaged"}


def _far() -> dict[str, Any]:
    columns = rows(8, seed=3)
    return {"near": island(rows(8)), "far": island({**columns, "x": columns["x"] - 100.0})}


def test_a_write_that_the_first_step_did_not_show_is_refused_with_the_models_word_as_remedy() -> None:
    with pytest.raises(
        CompositionError, match=r"'seen' of Late at some clients.*buffer_rules = \{'seen': 'averaged'\}"
    ):
        simulate(job(Late), _far())
    assert simulate(job(LateByRule, rounds=1), _far()).params["seen"] == 0.5


class Cached(Moving):
    buffer_rules: ClassVar = {"mean": "anew"}


class Alone(Moving):
    buffer_rules: ClassVar = {"mean": "local"}


def test_a_model_may_say_how_its_buffers_travel() -> None:
    made = simulate(job(Cached), {"a": island(rows()), "b": island(rows(seed=1))})
    assert "mean" not in made.params
    assert not made.model.mean.any()
    assert made.notices == ("Buffers set back to the model's own whenever a client is asked: mean.",)
    made = simulate(job(Alone), {"a": island(rows()), "b": island(rows(seed=1))})
    assert "mean" not in made.params
    assert made.notices == (
        "Buffers kept at each client, so that the server measures nothing, and the model predicts with a client's own alone: mean.",
    )


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"maen": "local"}, r"no such buffer\. Did you mean 'mean'"),
        ({"mean": "lokal"}, r"no such rule\. Did you mean 'local'"),
        ({"mean": "averaged", "n": "averaged"}, r"'n' averaged, but it is of int64"),
    ],
)
def test_a_wrong_rule_is_refused(rules: dict[str, str], words: str) -> None:
    model = seeded(Moving, 0)
    model.register_buffer("n", torch.tensor(0))
    model.buffer_rules = rules
    with pytest.raises(ConfigError, match=words):
        simulate(job(model), {"only": island(rows())})


class Unborn(nn.Module):
    def __init__(self, *, persistent: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("mean", None, persistent=persistent)

    def forward(self, x: Any) -> Any:
        if self.mean is None:
            self.mean = x.mean(0).detach()
        return self.linear(x - self.mean)


class Growing(Moving):
    def forward(self, x: Any) -> Any:
        self.mean = torch.cat([self.mean, x.mean(0).detach()])
        return self.linear(x)


class Widening(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("t", torch.tensor(0))

    def forward(self, x: Any) -> Any:
        self.t = self.t + 0.5
        return self.linear(x) * self.t


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: Unborn(persistent=True), "makes the buffer 'mean', which has no value before"),
        (Growing, r"turns the buffer 'mean' from float32 of shape \(3,\) into float32 of shape \(6,\)"),
        (Widening, r"turns the buffer 't' from int64 of shape \(\) into float32"),
    ],
)
def test_a_buffer_without_a_lasting_form_is_refused(model: Any, words: str) -> None:
    with pytest.raises(CompositionError, match=words):
        simulate(job(model), {"only": island(rows())})


class Counting(nn.Module):
    """Counts in an attribute that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.linear(x) * self.calls


@pytest.mark.parametrize("engine", ["inline", "batched"])
def test_no_client_begins_with_what_another_left_in_an_attribute(engine: str) -> None:
    model, both = seeded(Counting, 0), {"a": island(rows()), "b": island(rows())}
    two, one = (simulate(job(model), data, engine) for data in (both, {"a": island(rows())}))
    for name, value in one.params.items():
        np.testing.assert_allclose(two.params[name], value, atol=1e-6)
    assert two.notices[:-1] == (  # the last says that both have the same rows
        (
            "Training changes attributes that are no buffers, and every client begins with their first values, as the returned model does: calls. "
            "Use register_buffer for what must last."
        ),
    )


def test_a_cache_that_a_pass_makes_is_that_of_its_client() -> None:
    model = seeded(lambda: Unborn(persistent=False), 0)
    data = {"a": island(rows(seed=1)), "b": island(rows(seed=2))}
    want = [plain(model, rows(seed=seed), 1) for seed in (1, 2)]
    made = simulate(job(model, rounds=1), data)
    mean = sum(net.linear.weight.detach() for net in want) / 2
    np.testing.assert_allclose(made.params["linear.weight"], mean.numpy(), atol=1e-6)


def test_what_does_not_travel_is_the_same_in_every_process() -> None:
    def make() -> nn.Module:
        class Random(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(3, 2)
                self.register_buffer("features", torch.randn(3))

            def forward(self, x: Any) -> Any:
                return self.linear(x * self.features)

        return Random()

    first = simulate(job(make), {"only": island(rows())}).model
    with torch.random.fork_rng():
        torch.manual_seed(2)
        again = simulate(job(make), {"only": island(rows())}).model
    require_same(first, again)


@pytest.mark.parametrize("model", [Warm, lambda: Moving("re-assigned"), lambda: Moving("data"), Momentum])
def test_no_kind_of_buffer_leaves_without_noise(model: Any) -> None:
    private = {"privacy": GaussianLDP(epsilon=1.0, delta=1e-5, clip=0.1), "rounds": 1}
    with pytest.raises(CompositionError, match=r"would leave the clients without noise.*buffers='local'"):
        simulate(job(model, **private), {"only": island(rows())})
    assert set(simulate(job(model, buffers="local", **private), {"only": island(rows())}).params) >= {"linear.weight"}


class Shifting(nn.Module):
    """Puts a statistic of its rows into a trained parameter, as data-dependent initialisations do."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.linear, self.shift = how, nn.Linear(3, 2), nn.Parameter(torch.zeros(3))
        self.t = 0

    def forward(self, x: Any) -> Any:
        if self.training:
            mean = x.detach().mean(0)
            if self.how == "copy_":
                with torch.no_grad():
                    self.shift.copy_(-mean)
            elif self.how == "data":
                self.shift.data.mul_(0.5).sub_(mean)
            elif self.how == "values":  # nothing that a trial's rows show
                self.shift.data.copy_(torch.where(mean > 1e6, mean, self.shift.data))
            else:
                self.t += 1
                if self.t > 2:
                    self.shift.data.copy_(-mean)
        return self.linear(x + self.shift)


@pytest.mark.filterwarnings("ignore:.*(client by client|gradient of every example):RuntimeWarning")
@pytest.mark.parametrize("engine", ["inline", "batched"])
@pytest.mark.parametrize("how", ["copy_", "data", "values", "later"])
def test_no_pass_writes_a_parameter_where_gradients_alone_are_noised(how: str, engine: str) -> None:
    private = {"privacy": ExampleDP(epsilon=1.0, delta=1e-5, clip=0.1), "buffers": "local"}
    private["algorithm"] = atoll.FedAvg(lr=LR, steps=3, batch_size=4)
    with pytest.raises(CompositionError, match=r"writes parameters of Shifting \(shift\).*GaussianLDP or CentralDP"):
        simulate(job(lambda: Shifting(how), **private), {"only": island(rows())}, engine)


@pytest.mark.parametrize("engine", ["inline", "batched"])
@pytest.mark.parametrize("how", ["copy_", "data"])
def test_a_write_of_one_client_is_part_of_its_update_and_moves_no_other(how: str, engine: str) -> None:
    data, model = [rows(seed=1), rows(seed=2)], seeded(lambda: Shifting(how), 0)
    want = [plain(model, columns, 1).shift.detach().numpy() for columns in data]
    made = simulate(job(model, rounds=1), {"a": island(data[0]), "b": island(data[1])}, engine).params
    np.testing.assert_allclose(made["shift"], (want[0] + want[1]) / 2, atol=2e-6)


def test_a_mechanism_that_noises_the_whole_update_takes_what_a_pass_writes() -> None:
    private = {"privacy": GaussianLDP(epsilon=1.0, delta=1e-5, clip=1e-3), "rounds": 1}
    made = simulate(job(lambda: Shifting("data"), **private), {"only": island(rows())}).params
    assert np.abs(made["shift"]).max() < 0.1 < np.abs(rows()["x"].mean(0)).max()


class Normed(nn.Module):
    """Keeps a weight at norm 1 by assigning it, from one pass on."""

    def __init__(self, how: Callable[[nn.Linear], None], after: int = 0) -> None:
        super().__init__()
        self.linear, self.how, self.after, self.passes = nn.Linear(3, 2), how, after, 0

    def forward(self, x: Any) -> Any:
        if self.training:
            self.passes += 1
            if self.passes > self.after:
                self.how(self.linear)
        return self.linear(x)


def _unit(layer: nn.Linear) -> torch.Tensor:
    return layer.weight.detach() / layer.weight.detach().norm()


ASSIGNED: dict[str, Callable[[nn.Linear], Any]] = {
    "data": lambda layer: setattr(layer.weight, "data", _unit(layer)),
    "vector": lambda layer: nn.utils.vector_to_parameters(_unit(layer).flatten(), [layer.weight]),
    "set_": lambda layer: layer.weight.detach_().set_(_unit(layer)),
    "parameter": lambda layer: setattr(layer, "weight", nn.Parameter(_unit(layer))),
}


@pytest.mark.parametrize("engine", ["inline", "batched"])
@pytest.mark.parametrize(("how", "after"), [*((how, 0) for how in ASSIGNED), ("data", 2)])
def test_a_pass_that_assigns_a_parameter_anew_is_refused_with_what_lasts(how: str, after: int, engine: str) -> None:
    passes = atoll.FedAvg(lr=LR, epochs=3, batch_size=None)
    with pytest.raises(
        CompositionError, match=r"assigns the parameter 'linear.weight' anew.*copy_\(value\).*CustomLoop"
    ):
        simulate(job(lambda: Normed(ASSIGNED[how], after), algorithm=passes), {"only": island(rows())}, engine)


class Thawing(nn.Module):
    """Freezes a layer, or lets it train, by the number of its passes."""

    def __init__(self, trains: Callable[[int], bool], frozen: bool = False) -> None:
        super().__init__()
        self.first, self.linear, self.trains = nn.Linear(3, 3), nn.Linear(3, 2), trains
        self.first.requires_grad_(not frozen)
        self.register_buffer("passes", torch.tensor(0))

    def forward(self, x: Any) -> Any:
        if self.training:
            self.passes += 1
            self.first.weight.requires_grad_(self.trains(int(self.passes)))
        return self.linear(self.first(x))


@pytest.mark.parametrize(
    ("trains", "frozen", "told"),
    [
        (lambda k: k > 3, False, "freezes the parameter 'first.weight'"),
        (lambda k: k < 3, False, "freezes the parameter 'first.weight'"),
        (lambda k: True, True, "thaws the parameter 'first.weight'"),
    ],
)
def test_a_pass_that_freezes_or_thaws_a_parameter_is_refused(
    trains: Callable[[int], bool], frozen: bool, told: str
) -> None:
    passes = atoll.FedAvg(lr=LR, epochs=4, batch_size=None)
    with pytest.raises(CompositionError, match=rf"{told} by requires_grad.*parameter.detach\(\) in forward"):
        simulate(job(lambda: Thawing(trains, frozen), algorithm=passes), {"only": island(rows())})


def test_memory_alone_may_move_and_a_loop_of_ones_own_keeps_what_a_pass_assigns() -> None:
    model = seeded(lambda: Normed(lambda layer: setattr(layer.weight, "data", layer.weight.data.clone())), 0)
    require_same(simulate(job(model), {"only": island(rows())}).model, plain(model, rows()))
    model = seeded(lambda: Normed(ASSIGNED["data"]), 0)
    made = simulate(job(CustomLoop(model, _loop)), {"only": island(rows())})
    require_same(made.model, plain(model, rows()))
    assert any("passes" in notice for notice in made.notices)


# ---------------------------------------------------------------------- loops of one's own


def _loop(model: Any, shard: Any, config: Any, rng: Any) -> None:
    del config, rng
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=LR)
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(torch.tensor(shard.x)), torch.tensor(shard.y)).backward()
    optimiser.step()


@pytest.mark.parametrize(
    "name", [name for name in MODELS if name not in ("an average that is not saved", "frozen parameters")]
)
def test_a_loop_of_ones_own_keeps_buffers_alike(name: str) -> None:
    model = seeded(MODELS[name], 0)
    made = simulate(job(CustomLoop(model, _loop)), {"only": island(rows())})
    require_same(made.model, plain(model, rows()))


def test_a_loop_of_ones_own_may_keep_buffers_at_its_clients() -> None:
    model = seeded(MODELS["BatchNorm"], 0)
    made = simulate(job(CustomLoop(model, _loop), buffers="local"), {"only": island(rows())})
    want = plain(model, rows())
    assert not [name for name in made.params if "running" in name or "tracked" in name]
    np.testing.assert_allclose(made.params["2.weight"], want[2].weight.detach().numpy(), atol=1e-6)


# ---------------------------------------------------------------------- buffers that stay at the clients


def _apart() -> Any:
    """Clients whose inputs lie far from 0 and from each other, so that only their own statistics fit; the server has test rows."""
    sites = {f"s{i}": rows(40, seed=i) for i in range(3)}
    for i, columns in enumerate(sites.values()):
        columns["x"] = columns["x"] + np.float32(30.0 * (i + 1))
    made = atoll.data.Islands.from_datasets({name: island(columns) for name, columns in sites.items()})
    return made.with_test(island(rows(40, seed=9)))


def _normalised() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(3, momentum=None), nn.Linear(3, 2))


EVALUATIONS = {
    "at clients": atoll.Evaluation(clients=-1),
    "their own models": atoll.Evaluation(clients=-1, personal=True),
    "further metrics": atoll.Evaluation(clients=-1, metrics=[atoll.learn.metrics.Confusion(2)]),
}
LOCAL = {"buffers": "local", "rounds": 20, "algorithm": atoll.FedAvg(lr=LR, batch_size=None)}


@pytest.mark.every(3)
@pytest.mark.parametrize("engine", ["inline", "batched"])
@pytest.mark.parametrize("what", EVALUATIONS)
def test_clients_measure_with_their_own_buffers_and_the_server_not_at_all(what: str, engine: str) -> None:
    made = simulate(job(_normalised, evaluation=EVALUATIONS[what], **LOCAL), _apart(), engine)
    row = made.metrics[-1]
    assert row["clients/accuracy"] > 0.9
    assert row.get("personal/accuracy", 1.0) > 0.9
    assert not [name for name in row if name.startswith("test/")]
    with pytest.raises(CompositionError, match=r"0\.running_mean.*Evaluation\(clients=-1\)"):
        made.model(torch.zeros(2, 3))


def test_sums_of_clients_under_masks_are_of_their_own_buffers_too() -> None:
    evaluation = atoll.Evaluation(clients=-1, metrics=[atoll.learn.metrics.Confusion(2)])
    settings = {**LOCAL, "reducer": atoll.SecureAggregation()}
    assert simulate(job(_normalised, evaluation=evaluation, **settings), _apart()).metrics[-1]["clients/accuracy"] > 0.9


def test_a_client_that_has_not_trained_is_not_measured() -> None:
    schedule = {"selection": atoll.selection.Schedule([[0]]), "rounds": 1}
    made = simulate(job(_normalised, evaluation=EVALUATIONS["at clients"], **{**LOCAL, **schedule}), _apart())
    assert len(made.metrics[-1]["clients/accuracy/values"]) == 1


def test_the_model_predicts_once_a_clients_buffers_are_loaded() -> None:
    model = simulate(job(_normalised, **LOCAL), _apart()).model
    with pytest.raises(CompositionError, match="are at the clients"):
        copy.deepcopy(model)(torch.zeros(2, 3))
    state = model.state_dict()
    model.load_state_dict({name: value for name, value in state.items() if "running" not in name}, strict=False)
    with pytest.raises(CompositionError, match="are at the clients"):
        model(torch.zeros(2, 3))
    model.load_state_dict({**state, "0.running_mean": torch.full((3,), 30.0)})
    assert model(torch.zeros(2, 3)).shape == (2, 2)


# ---------------------------------------------------------------------- spectral normalisation: vectors that follow from a weight


NORMS = {
    "parametrization": nn.utils.parametrizations.spectral_norm,
    "hook": nn.utils.spectral_norm,
}


def _spectral(kind: str) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.Sequential(NORMS[kind](nn.Linear(6, 4)), nn.ReLU(), nn.Linear(4, 2))


def _weight(model: nn.Module) -> torch.Tensor:
    """The weight that a pass in evaluation mode uses."""
    model.eval()(torch.zeros(1, 6))
    return model[0].weight.detach()


def _six(count: int = 40, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 6)).astype(np.float32)
    x[:, seed] *= 6
    return {"x": x, "y": (x[:, seed] > 0).astype(np.int64)}


@pytest.mark.every(2)
@pytest.mark.parametrize("buffers", ["averaged", "local"])
@pytest.mark.parametrize("kind", NORMS)
def test_the_served_weight_of_a_spectral_normalisation_has_norm_1(kind: str, buffers: str) -> None:
    data = {f"s{i}": island(_six(seed=i)) for i in range(4)}
    model = seeded(lambda: _spectral(kind), 0)
    settings = {"algorithm": atoll.FedAvg(lr=0.5, epochs=8, batch_size=16), "rounds": 6, "buffers": buffers}
    made = simulate(job(model, evaluation=EVALUATIONS["at clients"], **settings), data)
    assert float(torch.linalg.matrix_norm(_weight(made.model), 2)) == pytest.approx(1.0, abs=1e-3)
    assert "made again from their weights" in " ".join(made.notices)
    assert "clients/accuracy" in made.metrics[-1]


@pytest.mark.parametrize("kind", NORMS)
def test_one_client_keeps_the_vectors_of_a_spectral_normalisation(kind: str) -> None:
    model = seeded(lambda: _spectral(kind), 0)
    made, want = simulate(job(model), {"only": island(_six())}).model, plain(model, _six())
    require_same(made, want)
    np.testing.assert_allclose(_weight(made).numpy(), _weight(want).numpy(), atol=2e-6)


def test_a_buffer_that_a_loss_gives_for_one_pass_is_not_written() -> None:
    """`atoll.labels.heads.seen_by` hands a mini-batch's padding to the network so: it is an input, and training goes on with the buffer as it was."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)
            self.register_buffer("real", torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * self.real.unsqueeze(1)

    with torch.random.fork_rng():
        network = FunctionalModule(Masked(), "cross_entropy", torch.device("cpu"), torch.float32)
    frozen = Held(network.frozen)
    params = {**dict(network.training.named_parameters()), "real": torch.zeros(4)}
    assert not network.outputs(params, frozen, torch.ones(4, 3), training=True).any()
    assert frozen["real"].tolist() == [1.0]
