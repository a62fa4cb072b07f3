"""`CustomLoop` refuses methods that nothing would apply, and runs what algorithms do before and after the local steps."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import atoll
from atoll.algorithms import FedAvg, FedAvgM, FedProx, FedSSO, Mime, Scaffold, Upcycled
from atoll.core.algebra import tree as T
from atoll.core.errors import CompositionError, DataError, QuorumError
from atoll.selection import Everyone
from atoll.torch import CustomLoop
from tests.support.torch_toys import seeded

ISLANDS = atoll.data.iid(atoll.data.digits(), parties=4, seed=0).subset([0, 1, 2])


def _never(model: nn.Module, shard: Any, config: dict[str, Any], rng: Any) -> None:
    raise AssertionError("a client was contacted")


def _descent(model: nn.Module, shard: Any, config: dict[str, Any], rng: Any) -> None:
    x, y = torch.tensor(shard.x, dtype=torch.float32), torch.tensor(shard.y)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()


@pytest.mark.parametrize(
    "algorithm",
    [FedProx(mu=0.1), Scaffold(), Mime(), Upcycled(base=FedProx(mu=0.1), coefficient=0.5)],
    ids=lambda a: type(a).__name__,
)
def test_a_method_that_changes_the_step_is_refused_before_anyone_is_contacted(algorithm: Any) -> None:
    job = atoll.Training(model=CustomLoop(seeded(lambda: nn.Linear(64, 10)), _never), algorithm=algorithm, rounds=1)
    with pytest.raises(CompositionError, match="changes the local step, and CustomLoop runs its own training"):
        atoll.simulate(job, ISLANDS, engine="inline")


@pytest.mark.parametrize("kind", [FedAvg, FedAvgM, FedSSO])
def test_what_an_algorithm_does_around_the_steps_is_done(kind: Any) -> None:
    model = seeded(lambda: nn.Linear(64, 10))
    algorithm = kind(lr=0.1, epochs=3, batch_size=None)
    job = atoll.Training(model=model, algorithm=algorithm, selection=Everyone(), rounds=2)
    theirs = atoll.simulate(job, ISLANDS, engine="inline")
    ours = atoll.simulate(job.replace(model=CustomLoop(model, _descent)), ISLANDS, engine="inline")
    for want, got in zip(T.leaves(theirs.params), T.leaves(ours.params), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def _loop_of(told: Any) -> Any:
    def loop(model: nn.Module, shard: Any, config: dict[str, Any], rng: Any) -> Any:
        with torch.no_grad():
            for p in model.parameters():
                p += len(shard)
        return told(len(shard))

    return loop


def _trained(told: Any, sizes: tuple[int, ...] = (4, 8, 12), **settings: Any) -> Any:
    data = {
        f"c{n}": atoll.data.Dataset({"x": np.ones((n, 2), np.float32), "y": np.arange(n) % 2}, classes=2) for n in sizes
    }
    still = seeded(lambda: nn.Linear(2, 2))
    nn.init.zeros_(still.weight)
    job = atoll.Training(
        model=CustomLoop(still, _loop_of(told)),
        selection=Everyone(),
        rounds=1,
        evaluation=atoll.Evaluation(server=False),
        **settings,
    )
    return atoll.simulate(job, data, engine="inline")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("reducer", [None, atoll.reducers.SecureAggregation()], ids=["plain", "masked"])
def test_a_metric_that_is_not_defined_is_left_out_and_the_update_stays(bad: float, reducer: Any) -> None:
    made = _trained(lambda n: {"auc": bad if n == 4 else n / 100}, **({"reducer": reducer} if reducer else {}))
    row = made.metrics[-1]
    assert row["replied"] == 3
    assert row["rejected"] == 0
    np.testing.assert_allclose(made.params["weight"], (16 + 64 + 144) / 24, rtol=1e-5)  # all three updates
    assert row["auc"] == pytest.approx((8 * 0.08 + 12 * 0.12) / 20)  # the mean of the other two
    assert row["partial_metrics"] == {"auc": "20 of 24 examples"}


def test_a_metric_that_no_client_has_is_not_zero() -> None:
    row = _trained(lambda n: {"auc": float("nan"), "hits": n}).metrics[-1]
    assert "auc" not in row
    assert row["partial_metrics"] == {"auc": "0 of 24 examples"}
    assert row["hits"] == pytest.approx(224 / 24)


def test_a_metric_of_every_client_is_told_without_a_word() -> None:
    assert "partial_metrics" not in _trained(lambda n: {"hits": n}).metrics[-1]


@pytest.mark.parametrize("value", [None, "good", np.ones(2)], ids=["none", "text", "array"])
def test_a_metric_that_is_no_number_is_named(value: Any) -> None:
    with pytest.raises(DataError, match=r"metric 'm' as a .*return one number for each metric"):
        _trained(lambda n: {"m": value})


def test_a_round_of_replies_without_examples_is_refused() -> None:
    with pytest.raises(QuorumError, match=r"all 1 replies are of 0 examples.*on_failure"):
        _trained(lambda n: {}, sizes=(0,))
    skipped = _trained(lambda n: {}, sizes=(0,), pacing=atoll.pacing.Synchronous(on_failure="skip"))
    assert "0 examples" in skipped.metrics[-1]["failed"]


# ---------------------------------------------------------------- what a loop makes of its model

TWO = {name: atoll.data.Dataset({"x": rows.x, "y": rows.y}) for name, rows in zip("ab", ISLANDS, strict=False)}


def _two_layers(frozen: bool = False) -> nn.Module:
    model = nn.Sequential(nn.Linear(64, 8), nn.Linear(8, 10))
    model[0].requires_grad_(not frozen)
    return model


def _freeze(model: Any, *rest: Any) -> None:
    model[0].requires_grad_(False)
    _descent(model, *rest)


def _thaw(model: Any, *rest: Any) -> None:
    model.requires_grad_(True)
    _descent(model, *rest)


def _replace(model: Any, *rest: Any) -> None:
    made = nn.utils.skip_init(nn.Linear, 8, 10)
    made.load_state_dict({name: 0.5 * value for name, value in model[1].state_dict().items()})
    model[1] = made
    _descent(model, *rest)


def _run(loop: Any, frozen: bool = False, **parts: Any) -> Any:
    job = atoll.Training(
        model=CustomLoop(seeded(lambda: _two_layers(frozen)), loop), selection=Everyone(), rounds=2, **parts
    )
    return atoll.simulate(job, TWO, engine="inline", progress=False)


def _by_hand(loop: Any, frozen: bool = False) -> dict[str, Any]:
    """Plain PyTorch: each client's loop on a copy, and the mean of their parameters by rows."""
    model = seeded(lambda: _two_layers(frozen))
    for _ in range(2):
        copies = [copy.deepcopy(model) for _ in TWO]
        for one, rows in zip(copies, TWO.values(), strict=True):
            loop(one, rows, {}, None)
        states, n = [one.state_dict() for one in copies], [len(rows) for rows in TWO.values()]
        mean = {name: sum(k * s[name] for k, s in zip(n, states, strict=True)) / sum(n) for name in states[0]}
        model.load_state_dict(mean)
    return {name: value.numpy() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("loop", [_freeze, _replace])
def test_a_loop_that_freezes_or_replaces_layers_is_plain_pytorch(loop: Any) -> None:
    made = _run(loop)
    for name, value in _by_hand(loop).items():
        np.testing.assert_allclose(made.params[name], value, atol=1e-6)


def test_the_remedy_for_a_loop_that_thaws_works() -> None:
    with pytest.raises(CompositionError, match=r"trains '0.weight', which the model has frozen.*freeze it in the loop"):
        _run(_thaw, frozen=True)

    def thaw_later(model: Any, shard: Any, config: Any, rng: Any) -> None:
        _freeze(model, shard, config, rng)
        _thaw(model, shard, config, rng)

    for name, value in _by_hand(thaw_later).items():
        np.testing.assert_allclose(_run(thaw_later).params[name], value, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda model: model.__setitem__(1, nn.Linear(8, 12)), r"leaves '1.weight' of shape \(12, 8\), and the model has \(10, 8\)"),
        (lambda model: model.append(nn.Linear(10, 10)), r"leaves the parameter '2.weight', which the model does not have"),
        (lambda model: model.pop(1), r"leaves no '1.weight'"),
        (lambda model: prune.random_unstructured(model[0], "weight", 0.5), r"leaves no '0.weight'.*prune.remove"),
    ],
    ids=["larger", "more", "fewer", "pruned"],
)  # fmt: skip
def test_a_loop_that_makes_a_model_of_another_form_is_refused(change: Any, told: str) -> None:
    def loop(model: Any, *rest: Any) -> None:
        _descent(model, *rest)
        with torch.random.fork_rng(devices=[]):
            change(model)

    with pytest.raises(CompositionError, match=told):
        _run(loop)


def test_a_loop_that_takes_a_buffer_away_is_refused() -> None:
    def loop(model: Any, *rest: Any) -> None:
        _descent(model, *rest)
        model[0] = nn.Identity()

    model = seeded(lambda: nn.Sequential(nn.BatchNorm1d(64, affine=False), nn.Linear(64, 10)))
    job = atoll.Training(model=CustomLoop(model, loop), selection=Everyone(), rounds=1)
    with pytest.raises(CompositionError, match=r"leaves no '0.running_mean'"):
        atoll.simulate(job, TWO, engine="inline", progress=False)


def test_a_loop_leaves_no_switch_to_the_next_client() -> None:
    seen = []

    def loop(model: Any, shard: Any, config: Any, rng: Any) -> None:
        seen.append((torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads()))
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(torch.get_num_threads() + 1)

    _run(loop)
    assert len(seen) == 4
    assert len(set(seen)) == 1
    assert (torch.is_grad_enabled(), torch.get_default_dtype()) == (True, torch.float32)


def _masked(model: nn.Module) -> nn.Module:
    """Let half of a layer's weights have no gradient, and the bias a small one: hooks of both kinds."""
    keep = torch.arange(model.weight.numel()).view_as(model.weight) % 2
    model.weight.register_hook(lambda slope: slope * keep)

    def bound(bias: Any) -> None:
        bias.grad.clamp_(-0.01, 0.01)

    model.bias.register_post_accumulate_grad_hook(bound)
    return model


def _masked_descent(model: nn.Module, shard: Any, config: dict[str, Any], rng: Any) -> None:
    _descent(_masked(model), shard, config, rng)


@pytest.mark.parametrize("hook", ["register_hook", "register_post_accumulate_grad_hook"])
@pytest.mark.parametrize("given", ["a model", "a loop"])
def test_a_hook_on_a_parameter_is_refused_and_its_remedy_is_plain_pytorch(hook: str, given: str) -> None:
    data = ISLANDS.subset([0])
    model = seeded(lambda: nn.Linear(64, 10))
    hooked = copy.deepcopy(model)
    getattr(hooked.weight, hook)(lambda held: None)
    made: Any = hooked if given == "a model" else CustomLoop(hooked, _never)
    job = atoll.Training(model=made, selection=Everyone(), rounds=1)
    with pytest.raises(
        CompositionError, match=r"the parameter 'weight' has a hook on its gradient.*loop of a CustomLoop"
    ):
        atoll.simulate(job, data, engine="inline")
    if hook == "register_hook" and given == "a model":
        result = atoll.simulate(job.replace(model=CustomLoop(model, _masked_descent)), data, engine="inline")
        plain = _masked(copy.deepcopy(model))
        _descent(plain, data.shard(0), {}, None)
        for name, value in plain.named_parameters():
            np.testing.assert_allclose(result.params[name], value.detach(), atol=1e-6)


def test_marks_of_parameters_are_there_in_the_loop() -> None:
    model = seeded(lambda: nn.Linear(64, 10))
    model.bias.frozen_for = "good"  # type: ignore[attr-defined]

    def descent(own: nn.Module, shard: Any, config: dict[str, Any], rng: Any) -> None:
        chosen = [p for p in own.parameters() if getattr(p, "frozen_for", "") != "good"]
        optimiser = torch.optim.SGD(chosen, lr=0.1)
        x, y = torch.tensor(shard.x, dtype=torch.float32), torch.tensor(shard.y)
        nn.functional.cross_entropy(own(x), y).backward()
        optimiser.step()

    job = atoll.Training(model=CustomLoop(model, descent), selection=Everyone(), rounds=1)
    made = atoll.simulate(job, ISLANDS.subset([0]), engine="inline")
    np.testing.assert_array_equal(made.params["bias"], model.bias.detach().numpy())
    assert np.abs(made.params["weight"] - model.weight.detach().numpy()).max() > 0


@pytest.mark.parametrize("engine", ["inline", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_loop_that_trains_the_given_object_is_refused(engine: str) -> None:
    model = seeded(lambda: nn.Linear(64, 10))
    copied = copy.deepcopy(model)

    def descent(own: nn.Module, shard: Any, config: dict[str, Any], rng: Any) -> None:
        _descent(model, shard, config, rng)

    job = atoll.Training(model=CustomLoop(model, descent), selection=Everyone(), rounds=1)
    with pytest.raises(CompositionError, match=r"changes 'weight' of the model object.*first argument"):
        atoll.simulate(job, ISLANDS.subset([0]), engine=engine)
    atoll.simulate(job.replace(model=CustomLoop(copied, descent)), ISLANDS.subset([0]), engine="inline")  # another one
