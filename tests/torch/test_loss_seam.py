"""Losses that ask for more than output and target: the same numbers on every path, and in the block path."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import atoll
from atoll.algorithms import FedAvg
from atoll.core.algebra import tree as T
from atoll.core.errors import AtollError, ConfigError, DataError
from atoll.data import Dataset, Islands
from atoll.learn.local.update import batch_rows
from atoll.selection import Everyone
from atoll.torch import LocalTraining, evaluate
from tests.support import losses_by_hand as own
from tests.support.losses_by_hand import FixMatchAvg
from tests.support.torch_toys import Dropped, broadcast_of, compare, keys_of, seeded, shards_of, worst

SIZES = [15, 3, 11, 5, 16]
TOLERANCE = 1e-4
CLASSES = np.array([1.0, 0.5, 2.0, 1.5], np.float32)


def _shards(**more: Any) -> list[dict[str, Any]]:
    """Clients with half of the labels, times and events."""
    rng = np.random.default_rng(11)
    made = []
    for x, y in shards_of(SIZES, (6,)):
        n = len(y)
        made.append({"x": x, "y": y, "labelled": rng.random(n) < 0.5, "event": rng.integers(0, 2, n), **more})
    return made


def _survivors() -> list[dict[str, Any]]:
    times = np.random.default_rng(4)
    return [{**shard, "y": times.exponential(size=len(shard["y"])).astype(np.float32)} for shard in _shards()]


def _without(shards: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in shard.items() if key != name} for shard in shards]


CASES: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "fixmatch": (own.fixmatch, Dropped, _shards, {"tau": 0.3}),
    "survival": (own.survival, lambda: nn.Linear(6, 1), _survivors, {}),
    "distilled": (own.distilled, Dropped, _shards, {}),
    "reweighted": (own.reweighted, Dropped, _shards, {"classes": CLASSES}),
    "numbered": (own.numbered, Dropped, _shards, {"round": 3}),
    "noisy": (own.noisy, Dropped, _shards, {}),
    "per-row": (own.smoothed_rows, Dropped, _shards, {}),
    "mean": (own.smoothed, Dropped, lambda: _without(_shards(), "labelled"), {}),
    "named": ("cross_entropy", Dropped, _shards, {}),
}
WAYS = {
    "vector": {"mode": "vector", "block": 3},
    "unrolled": {"mode": "vector", "block": 8, "unroll": 3},
    "single": {"mode": "single", "channels_last": True},
    "native": {"mode": "vector", "block": 4, "native": True},
}


QUICK_NATIVE = {"mean"}  # every compilation takes seconds


@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param(name, way, marks=pytest.mark.slow if way == "native" and name not in QUICK_NATIVE else ())
        for name in CASES
        for way in WAYS
    ],
)
@pytest.mark.quick("*-vector", "fixmatch-single", "survival-single", "numbered-single", "mean-*", "per-row-unrolled")
def test_every_path_gives_the_reference(name: str, way: str) -> None:
    loss, make, shards, more = CASES[name]
    model = seeded(make)
    if name == "mean" and way != "single":
        pytest.skip("one number for all rows cannot be padded")
    training = LocalTraining(
        model, FedAvg(lr=0.1, epochs=2, batch_size=5), loss=loss, compile="never", choices=WAYS[way]
    )
    assert compare(training, shards(), broadcast_of(model, **more)) < TOLERANCE


@pytest.mark.every(3)
@pytest.mark.parametrize("name", CASES)
def test_what_a_loss_returns_decides_whether_it_runs_in_blocks(name: str) -> None:
    loss, make, shards, more = CASES[name]
    model = seeded(make)
    training = LocalTraining(model, FedAvg(epochs=2, batch_size=5), loss=loss, compile="never")
    training.many_sum(shards(), broadcast_of(model, **more), None, keys_of(len(SIZES)))
    assert training.choices["mode"] == ("single" if name == "mean" else "vector"), training.choices["reason"]


def _oracle(model: nn.Module, shard: dict[str, Any], key: int, loss_at: Any) -> dict[str, Any]:
    """A client's update by a loop in plain PyTorch."""
    made = seeded(lambda: type(model)(*_sizes(model)))
    made.load_state_dict(model.state_dict())
    optimiser = torch.optim.SGD(made.parameters(), lr=0.1)
    for rows in batch_rows(FedAvg(epochs=3, batch_size=4), len(shard["y"]), key):
        optimiser.zero_grad()
        loss_at(made(torch.tensor(shard["x"][rows])), rows).backward()
        optimiser.step()
    before = dict(model.named_parameters())
    return {name: (p - before[name]).detach().numpy() for name, p in made.named_parameters()}


def _sizes(model: nn.Module) -> tuple[int, int]:
    assert isinstance(model, nn.Linear)
    return model.in_features, model.out_features


def _checked(training: LocalTraining, shards: list[Any], loss_at: Any) -> None:
    model = training.network.training
    keys = keys_of(len(shards))
    for batch in training.many(shards, broadcast_of(model), None, keys):
        for place, position in enumerate(batch.positions.tolist()):
            want = _oracle(model, shards[position], int(keys[position]), lambda o, r, p=position: loss_at(p, o, r))
            got = T.map(lambda leaf, i=place: leaf[i], batch.reply["update"].value)
            assert worst(want, got) < TOLERANCE


def test_rows_without_a_label_do_not_count() -> None:
    shards = _shards()
    shards[1]["labelled"][:] = False  # a client without labels stays where it is

    def loss_at(client: int, outputs: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
        there = torch.tensor(shards[client]["labelled"][rows])
        target = torch.tensor(shards[client]["y"][rows])
        return F.cross_entropy(outputs[there], target[there]) if there.any() else outputs.sum() * 0.0

    training = LocalTraining(seeded(lambda: nn.Linear(6, 4)), FedAvg(epochs=3, batch_size=4), compile="never")
    _checked(training, shards, loss_at)
    assert training.choices["mode"] == "vector"


def test_several_labels_a_row_may_have_holes() -> None:
    rng = np.random.default_rng(2)
    shards = [
        {"x": x, "y": rng.integers(0, 2, (len(x), 3)), "labelled": rng.random((len(x), 3)) < 0.6}
        for x, _ in shards_of(SIZES, (6,))
    ]

    def loss_at(client: int, outputs: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
        there = torch.tensor(shards[client]["labelled"][rows])
        target = torch.tensor(shards[client]["y"][rows]).float()
        if not there.any():
            return outputs.sum() * 0.0
        return F.binary_cross_entropy_with_logits(outputs[there], target[there])

    algorithm = FedAvg(epochs=3, batch_size=4)
    training = LocalTraining(seeded(lambda: nn.Linear(6, 3)), algorithm, loss="bce", compile="never")
    _checked(training, shards, loss_at)
    assert training.choices["mode"] == "vector"
    model = training.network.training
    found = evaluate(training.network, broadcast_of(model)["params"], shards[0])
    with torch.no_grad():
        outputs = model(torch.tensor(shards[0]["x"]))
    there, target = torch.tensor(shards[0]["labelled"]), torch.tensor(shards[0]["y"])
    assert found["correct"] / found["n"] == pytest.approx(float(((outputs > 0) == (target > 0))[there].float().mean()))
    assert found["loss_sum"] / found["n"] == pytest.approx(float(loss_at(0, outputs, np.arange(len(target)))), rel=1e-5)


@pytest.mark.quick("named")
@pytest.mark.parametrize("name", ["named", "per-row", "fixmatch"])
def test_what_a_missing_label_holds_is_never_looked_at(name: str) -> None:
    loss, make, shards, more = CASES[name]
    model, keys = seeded(make), keys_of(len(SIZES))

    def sums(hidden: Any) -> Any:
        made = shards()
        for shard in made:
            shard["y"] = np.where(shard["labelled"], shard["y"], hidden)
        training = LocalTraining(model, FedAvg(epochs=2, batch_size=5), loss=loss, compile="never")
        return training.many_sum(made, broadcast_of(model, **more), None, keys).totals["update"].value

    for want, got in zip(T.leaves(sums(-1)), T.leaves(sums(3)), strict=True):
        np.testing.assert_array_equal(want, got)


def test_a_data_set_forgets_labels_that_are_missing() -> None:
    there = np.array([True, False, True])
    data = Dataset({"x": np.zeros((3, 2)), "y": [1, -1, 2], "labelled": there})
    assert data.y.tolist() == [1, 0, 2]
    assert (data.task, data.classes) == ("classification", 3)
    values = Dataset({"x": np.zeros((3, 2)), "y": [1.0, np.nan, 2.0], "labelled": there.astype(int)})
    assert values.y.tolist() == [1.0, 0.0, 2.0]
    assert values["labelled"].dtype == bool
    with pytest.raises(DataError, match=r"'labelled' has shape \(2,\)|different lengths"):
        Dataset({"x": np.zeros((3, 2)), "y": [1, 0, 2], "labelled": [True, False]})
    with pytest.raises(DataError, match="says whether each label is present, but has other values"):
        Dataset({"x": np.zeros((3, 2)), "y": [1, 0, 2], "labelled": [1, 0, 7]})


# ---------------------------------------------------------------- whole trainings


def _islands(keep: float = 0.2) -> Islands:
    data = atoll.data.digits()
    labelled = np.random.default_rng(0).random(len(data)) < keep
    return atoll.data.iid(data.with_columns({"labelled": labelled}), parties=6, seed=0).with_test(data.test)


def _fixmatch(**changes: Any) -> atoll.Training:
    settings = {
        "model": lambda: nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10)),
        "algorithm": FixMatchAvg(lr=0.3, epochs=2, batch_size=16, tau=0.7),
        "selection": Everyone(),
        "loss": own.fixmatch,
        "rounds": 4,
        "compile": "never",
    }
    return atoll.Training(**{**settings, **changes})


@pytest.mark.slow
def test_fixmatch_is_the_same_on_every_engine() -> None:
    text = inspect.getsource(own)
    lines = text[text.index("# FixMatch") : text.index("# The end of FixMatch")].strip().splitlines()
    assert len(lines) < 60
    islands = _islands()
    batched, inline = (atoll.simulate(_fixmatch(), islands, engine=engine) for engine in ("batched", "inline"))
    assert batched.engine["tasks"]["atoll.torch:train"]["tuning"]["mode"] == "vector"
    for want, got in zip(T.leaves(inline.params), T.leaves(batched.params), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)
    assert batched.metrics.last("test/accuracy") > 0.5
    assert batched.metrics.last("test/loss") == pytest.approx(inline.metrics.last("test/loss"), rel=1e-4)


@pytest.mark.parametrize("topology", ["Star", "Gossip"])
def test_a_loss_is_told_the_round(topology: str) -> None:
    from atoll.topology import Gossip, Star

    seen: list[float] = []

    def told(output: Any, target: Any, *, round: Any) -> Any:  # noqa: A002
        seen.append(float(round))
        return F.cross_entropy(output, target, reduction="none")

    job = atoll.Training(
        model=atoll.models.mlp(64, 10), algorithm=FedAvg(batch_size=None), selection=Everyone(), loss=told, rounds=3
    )
    topologies = {"Star": Star(), "Gossip": Gossip()}
    atoll.simulate(job.replace(topology=topologies[topology]), _islands(), engine="inline")
    assert sorted(set(seen)) == [1.0, 2.0, 3.0]


@pytest.mark.network
def test_a_survival_loss_with_a_column_of_events_is_evaluated_too() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3)).astype(np.float32)
    true = np.exp(x @ np.array([0.7, -0.5, 0.3], np.float32))
    lives, seen = rng.exponential(1.0 / true), rng.exponential(2.0, 400)
    columns = {"x": x, "y": np.minimum(lives, seen).astype(np.float32), "event": lives <= seen}
    train, test = Dataset(columns).split(0.25, seed=1)
    islands = atoll.data.iid(train, parties=5, seed=0).with_test(test)
    job = atoll.Training(
        model=lambda: nn.Linear(3, 1), algorithm=FedAvg(lr=0.2, epochs=2), loss=own.survival, rounds=10
    )
    result = atoll.simulate(job, islands)
    rate = x @ result.params["weight"][0] + result.params["bias"]
    assert np.corrcoef(rate, np.log(true))[0, 1] > 0.9
    assert result.metrics.last("test/loss") < result.metrics[0]["test/loss"]


# ---------------------------------------------------------------- what is refused


def _refused(loss: Any, **columns: Any) -> str:
    data = atoll.data.digits()
    islands = atoll.data.iid(data.with_columns(columns) if columns else data, parties=3, seed=0)
    job = atoll.Training(model=atoll.models.mlp(64, 10), algorithm=FedAvg(), loss=loss, rounds=1, compile="never")
    with pytest.raises(AtollError, match="the loss ") as caught:
        atoll.simulate(job, islands, engine="inline")
    return str(caught.value)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    def loss(output: Any, target: Any, *, lable: Any) -> Any:
        raise AssertionError("a client was contacted")

    said = _refused(loss)
    assert "the loss 'loss' needs 'lable', but the data have no such column" in said
    assert "give a default to a parameter of the loss itself" in said


def test_something_that_the_server_does_not_send_is_refused() -> None:
    assert "asks the broadcast for 'classes', but the server sends params, lr" in _refused(own.reweighted)


def test_holes_need_a_loss_that_can_leave_them_out() -> None:
    there = np.arange(len(atoll.data.digits())) % 2 == 0
    said = _refused(own.smoothed, labelled=there)
    assert "labels are missing, and the loss 'smoothed' returns one number for all rows" in said


def test_a_loss_that_returns_something_else_is_refused() -> None:
    assert "returns a tensor (10,) for 3 rows" in _refused(lambda output, target: output.mean(0))
    assert "returns a tuple for 3 rows" in _refused(lambda output, target: (output, target))


def _regress(loss: Any, rows: int = 8) -> Any:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(rows, 4)).astype(np.float32)
    data = Dataset({"x": x, "y": x.sum(1)}, task="regression")
    job = atoll.Training(model=lambda: nn.Linear(4, 1), loss=loss, rounds=1, selection=Everyone())
    return atoll.simulate(job, {"a": data}, engine="inline", progress=False)


def _of_model(model: Any, x: Any, y: Any) -> Any:
    return torch.sigmoid(model(x)) * y


@pytest.mark.parametrize("rows", [1, 2, 8])
@pytest.mark.parametrize(
    "loss",
    [
        lambda output, target: (output - target) ** 2,
        lambda output, target: torch.where(target > 0, output, -output).mean(),
        lambda output, target: F.mse_loss(input=output, target=target),
        nn.HuberLoss(),
        nn.L1Loss(),
        nn.BCEWithLogitsLoss(),  # PyTorch refuses the shapes
        _of_model,
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size:UserWarning")
def test_a_loss_that_pairs_every_output_with_every_target_is_refused(loss: Any, rows: int) -> None:
    with pytest.raises(DataError, match=r"outputs of shape \(n, 1\) .*targets of shape \(n,\).*give both one shape"):
        _regress(loss, rows=rows)


@pytest.mark.parametrize(
    "loss",
    [
        lambda output, target: (output.squeeze(1) - target) ** 2,
        lambda output, target: (output - target.view_as(output)) ** 2,
        lambda output, target: ((output - output.T) - (target[:, None] - target)).pow(2).mean(),  # pairs on purpose
        lambda output, target: ((output[:, None, 0] - target[None, :]) ** 2).mean(),
    ],
)
def test_losses_of_one_shape_and_losses_of_pairs_train(loss: Any) -> None:
    assert np.isfinite(_regress(loss).metrics[-1]["loss"])


def test_a_loop_of_ones_own_evaluates_a_loss_only() -> None:
    from atoll.torch import CustomLoop

    loop = CustomLoop(atoll.models.mlp(64, 10), lambda *given: None)
    job = atoll.Training(model=loop, loss=own.distilled, rounds=1)
    with pytest.raises(ConfigError, match="needs broadcast, model, but CustomLoop only evaluates it"):
        atoll.simulate(job, _islands(), engine="inline")
