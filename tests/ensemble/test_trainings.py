"""What an ensemble trains beside its leaves: one epsilon for all, a private leaf, an over-arch; and ensembles of trainings that exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atoll
from atoll.core.errors import CompositionError, ConfigError, DataError
from atoll.core.event import Gaussian
from atoll.ensemble import AttributeClusters, Federated, ListedClusters, OverArch, PrivateLeaf, RandomClusters
from atoll.ensemble.accounting import share_epsilon
from tests.ensemble.test_federated import leaf, population, quiet, rows_of
from tests.support.killed_trainings import killed_training

SEGMENT = AttributeClusters("segment")
PRIVATE = PrivateLeaf(columns=["d"], model=atoll.models.mlp(1, 2, (4,)))


def with_private(**settings: Any) -> Federated:
    """An ensemble whose leaves see the columns a, b and c, and whose private leaf sees d."""
    small = leaf(model=atoll.models.mlp(3, 2, (3,)))
    given = {"clusters": SEGMENT, "leaf": small, "aggregate": "mean", "private_leaf": PRIVATE, **settings}
    return Federated(**given)


def test_shared_epsilons_are_the_largest_that_keep_one() -> None:
    assert share_epsilon(4.0, 1, lambda each: 9.0) == 4.0
    for total in (lambda each: 2 * each, lambda each: 2**0.5 * each, lambda each: each + each**2 / 16):
        found = share_epsilon(4.0, 2, total)
        assert 4 * 0.999 * 0.999 <= total(found) <= 4.0


def test_leaves_and_over_arch_keep_one_epsilon() -> None:
    private = leaf(rounds=2, privacy=atoll.mechanisms.CentralDP(epsilon=4.0, clip=1.0, delta=1e-5))
    made = atoll.simulate(Federated(clusters=SEGMENT, leaf=private, aggregate="over_arch"), population()).outcome
    assert 0.998 * 4 < made.loss.total <= 4.0
    assert made.loss.leaves == pytest.approx(made.loss.aggregator, rel=1e-3)
    noises = {one.name: event.noise_multiplier for one in made.loss.releases for event, _ in one.events if isinstance(event, Gaussian)}  # fmt: skip
    assert set(noises) == {"leaf 0", "leaf 1", "leaf 2", "over-arch"}


def test_one_leaf_with_a_mechanism_keeps_its_promise() -> None:
    private = leaf(rounds=1, privacy=atoll.mechanisms.CentralDP(epsilon=4.0, clip=1.0, delta=1e-5))
    made = atoll.simulate(Federated(clusters=RandomClusters(1), leaf=private, aggregate="mean"), population()).outcome
    assert made.loss.total == pytest.approx(4.0, rel=1e-3)


@pytest.mark.parametrize("aggregate", ["mean", "median", "over_arch"])
def test_private_columns_are_in_no_message_and_in_the_answer(aggregate: str) -> None:
    islands = population()
    made = atoll.simulate(with_private(aggregate=aggregate, overarch=OverArch(hidden=(3,))), islands).outcome
    public, own = rows_of(islands).x[:, :3], rows_of(islands).x[:, 3:]
    message = made.device.ask(made.leaves, public)
    h = 3 if aggregate == "over_arch" else 0
    assert message.shape == (len(public), 3 * (1 + h))
    chances = made.device.predict_proba(message, own)
    assert np.allclose(chances.sum(1), 1)
    assert not np.allclose(chances, made.device.predict_proba(message, own[::-1].copy()))
    assert (chances.argmax(1) == rows_of(islands).y).mean() == pytest.approx(made.scores["device"]["accuracy"])
    if aggregate == "mean":
        mine = made.device.private(torch.tensor(own)).softmax(-1).detach().numpy()
        theirs = [one(torch.tensor(public)).softmax(-1).numpy() for one in made.leaves]
        assert np.allclose(chances, np.mean([*theirs, mine], axis=0), atol=1e-5)
    assert made.predict({name: public[:, k] for k, name in enumerate("abc")}).shape == (len(public),)


def test_the_servers_leaves_are_those_of_public_columns() -> None:
    islands = population()
    cut = atoll.data.Islands.from_datasets(
        {str(name): atoll.data.Dataset({"x": islands.shard(k)["x"][:, :3], "y": islands.shard(k)["y"], "segment": islands.shard(k)["segment"]}) for k, name in enumerate(islands.names)}
    )  # fmt: skip
    small = leaf(model=atoll.models.mlp(3, 2, (3,)))
    alone = atoll.simulate(Federated(clusters=SEGMENT, leaf=small, aggregate="mean"), cut).outcome
    made = atoll.simulate(with_private(), islands).outcome
    for one, other in zip(made.leaves, alone.leaves, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))  # fmt: skip


def test_a_private_leaf_adds_to_what_its_users_lose() -> None:
    noise = atoll.mechanisms.CentralDP(epsilon=4.0, clip=1.0, delta=1e-5)
    small = leaf(model=atoll.models.mlp(3, 2, (3,)), rounds=1, privacy=noise)
    loss = atoll.simulate(with_private(leaf=small), population()).outcome.loss
    assert [one.name for one in loss.releases][-1] == "private leaf"
    assert 0.998 * 4 < loss.total <= 4.0
    assert loss.aggregator == 0.0


def test_private_leaves_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="a device can join these"):
        with_private(aggregate="gate")
    with pytest.raises(CompositionError, match="private columns stay"):
        with_private(opt_in=0.2)
    with pytest.raises(ConfigError, match="name the columns"):
        PrivateLeaf(columns="d", model=None)
    with pytest.raises(DataError, match="no feature 'e'"):
        with_private(private_leaf=PrivateLeaf(columns=["e"], model=None)).prepare(population())
    with pytest.raises(CompositionError, match="all columns are private"):
        with_private(private_leaf=PrivateLeaf(columns=list("abcd"), model=None)).prepare(population())


@pytest.mark.quick("block")
@pytest.mark.parametrize("how", ["block", "beside"])
def test_an_ensemble_that_is_killed_goes_on(how: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {} if how == "block" else {"uplink": [atoll.stages.Clip(0.5)]}
    small = leaf(model=atoll.models.mlp(3, 2, (2,)), rounds=2, **more)
    job = with_private(leaf=small, aggregate="over_arch", overarch=OverArch(hidden=()))
    found = killed_training(job, population(users=6, rows=6), tmp_path, points=4)
    assert found.result.block == ("" if how == "block" else "uplink")


# ---------------------------------------------------------------- trainings that exist


def runs_of(islands: Any, job: Any = None, among: Any = range(12)) -> dict[str, Any]:
    """A training for each segment."""
    return {
        str(s): atoll.simulate(quiet(job or leaf()), islands.subset([i for i in among if i % 3 == s])) for s in range(3)
    }


def test_trainings_that_exist_are_the_ensemble_that_trains_them() -> None:
    islands = population()
    runs = runs_of(islands, among=range(9))
    made = Federated.of(runs, islands, clusters=SEGMENT, opt_in=["u9", "u10", "u11"])
    job = Federated(clusters=SEGMENT, leaf=leaf(), opt_in=["u9", "u10", "u11"])
    whole = atoll.simulate(job, islands).outcome
    for one, other in zip(made.leaves, whole.leaves, strict=True):
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))  # fmt: skip
    for name, found in (
        (name, found) for name, found in whole.scores.items() if name != "over_arch"
    ):  # whose weights start from another seed
        assert made.scores[name] == pytest.approx(found, abs=1e-4)
    listed = Federated.of(runs, islands, aggregate="mean")
    assert listed.scores["mean"] == made.scores["mean"]
    assert all(not p.requires_grad for p in made.model.parameters())
    assert all(p.requires_grad for p in runs["0"].model.parameters())


def test_trainings_that_make_no_ensemble_are_refused() -> None:
    islands = population()
    runs = runs_of(islands)
    with pytest.raises(CompositionError, match="'u10' gave labels to the server and has trained the leaf '1'"):
        Federated.of(runs, islands, clusters=SEGMENT, opt_in=["u10"])
    with pytest.raises(CompositionError, match="nobody knows the leaf"):
        Federated.of(runs_of(islands, among=range(9)), islands, opt_in=["u10"])
    with pytest.raises(CompositionError, match="has trained the leaf '0', and the rule gives it another"):
        Federated.of({"0": runs["1"], "1": runs["0"], "2": runs["2"]}, islands, clusters=SEGMENT, aggregate="mean")
    with pytest.raises(CompositionError, match="in the leaves '0' and '1'"):
        Federated.of({**runs, "1": runs["0"]}, islands, aggregate="mean")
    rule = ListedClusters({"a": [f"u{i}" for i in range(12)]})
    with pytest.raises(ConfigError, match="results of 0, 1, 2 for the leaves a"):
        Federated.of(runs, islands, clusters=rule, aggregate="mean")
    with pytest.raises(ConfigError, match="learned on labels of opt-in users"):
        Federated.of(runs, islands, aggregate="over_arch")
    three = atoll.simulate(quiet(leaf(model=atoll.models.mlp(4, 3, (3,)))), islands.subset([0, 3]))
    with pytest.raises(DataError, match="answer 3, 2, 2 classes"):
        Federated.of({**runs, "0": three}, islands, aggregate="mean")
