"""FedBoost: drawn members estimate the slopes of all, all members give mirror descent on the pooled loss, and traffic follows the draw."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import atoll
from atoll.core.errors import AtollError, ConfigError
from atoll.data import Dataset, Islands
from atoll.ensemble import AttributeClusters, FedBoost, Federated
from atoll.ensemble.boosting import draw_chances, mix_logs, project_on_simplex, slopes_of
from tests.ensemble.test_federated import leaf, population, rows_of


class Normal(nn.Module):
    """The log density of a normal distribution of one column."""

    def __init__(self, mean: float) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.tensor(mean))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        told: torch.Tensor = -0.5 * ((x[:, 0] - self.mean) / 0.7) ** 2 - np.log(0.7 * np.sqrt(2 * np.pi))
        return told


MEANS = np.linspace(-3, 3, 6)
SHARES = np.array([0.0, 0.5, 0.0, 0.1, 0.0, 0.4])


def members_of(loss: str) -> list[nn.Module]:
    """Six densities, or four random models of the columns."""
    if loss == "density":
        return [Normal(float(mean)) for mean in MEANS]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(4)
        return [nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3 if loss == "log" else 1)) for _ in range(4)]


def clients(sizes: tuple[int, ...] = (30, 50, 10), seed: int = 0) -> Islands:
    """Clients of several sizes, with rows of a mixture of three of the six densities."""
    draw = np.random.default_rng(seed)

    def rows(count: int) -> Dataset:
        x = np.stack([draw.choice(MEANS, count, p=SHARES) + 0.7 * draw.normal(size=count), draw.normal(size=count)], 1)
        y = np.digitize(x[:, 0], [-1.0, 1.0])
        return Dataset({"x": x.astype(np.float32), "y": y}, task="classification", classes=3)

    return Islands.from_datasets({f"c{i}": rows(size) for i, size in enumerate(sizes)}, test=rows(200))


def boost(job: FedBoost, islands: Islands, seed: int = 0) -> Any:
    """Return the outcome, the records and the bytes of a run."""
    kept: dict[str, Any] = {}

    ready = job.prepare(islands)

    async def measured(fed: Any) -> Any:
        found = await ready.program(fed)
        kept.update(records=list(fed.records), **fed.bytes())
        return found

    measured.tasks = ready.tasks  # type: ignore[attr-defined]
    return atoll.simulate(measured, islands, engine="inline", seed=seed, progress=False), kept


def every_draw(chances: np.ndarray) -> Any:
    """Give every set of members with its probability."""
    for chosen in itertools.product((False, True), repeat=len(chances)):
        yield np.flatnonzero(chosen), float(np.prod(np.where(chosen, chances, 1 - chances)))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_mean_over_all_draws_is_the_slope_of_all_members(scale: float) -> None:
    draw = np.random.default_rng(1)
    told, y = scale * draw.normal(size=(4, 7)), scale * draw.normal(size=7)
    weights, chances = draw.dirichlet(np.ones(4)), np.array([0.2, 0.9, 1.0, 0.5])
    slope, mixture = np.zeros(4), np.zeros(7)
    for places, chance in every_draw(chances):
        if len(places):
            slope[places] += chance * slopes_of(told[places], y, weights[places], chances[places], "squared")
            mixture += chance * np.exp(mix_logs(-np.abs(told[places]), weights[places] / chances[places]))
    exact = 2 * ((weights @ told - y) * told).mean(1)
    np.testing.assert_allclose(slope, exact, rtol=1e-10, atol=1e-12 * scale**2)
    np.testing.assert_allclose(mixture, weights @ np.exp(-np.abs(told)), rtol=1e-12)


def pooled_descent(members: list[nn.Module], islands: Islands, loss: str, geometry: str, lr: float, rounds: int) -> Any:
    """The oracle: mirror descent on all rows in one place, with PyTorch's own gradient."""
    x = torch.tensor(np.concatenate([np.asarray(islands.shard(i)["x"]) for i in range(len(islands))]))
    y = torch.tensor(np.concatenate([np.asarray(islands.shard(i)["y"]) for i in range(len(islands))]))
    with torch.no_grad():
        told = torch.stack([one(x).double() for one in members])
    if loss == "log":
        told = told.softmax(-1)[:, torch.arange(len(y)), y]
    told = told.exp() if loss == "density" else told.reshape(len(members), -1)
    weights = torch.full((len(members),), 1 / len(members), dtype=torch.float64)
    total = torch.zeros_like(weights)
    for _ in range(rounds):
        own = weights.clone().requires_grad_(True)
        cost = ((own @ told - y) ** 2).mean() if loss == "squared" else -(own @ told).log().mean()
        (slope,) = torch.autograd.grad(cost, own)
        if geometry == "entropy":
            weights = weights * torch.exp(-lr * slope)
            weights = weights / weights.sum()
        else:
            weights = torch.from_numpy(project_on_simplex((weights - lr * slope).numpy()))
        total = total + weights
    return (total / rounds).numpy()


@pytest.mark.parametrize(
    ("loss", "geometry"), [("log", "entropy"), ("density", "entropy"), ("squared", "entropy"), ("squared", "euclidean")]
)
def test_with_all_members_it_is_mirror_descent_on_the_pooled_loss(loss: Any, geometry: Any) -> None:
    islands, members = clients(), members_of(loss)
    job = FedBoost(members=members, loss=loss, geometry=geometry, rounds=5, lr=0.3)
    found, kept = boost(job, islands)
    want = pooled_descent(members, islands, loss, geometry, 0.3, 5)
    assert np.abs(want - 1 / len(want)).max() > 1e-3
    np.testing.assert_allclose(found.weights, want, atol=1e-6)
    with torch.no_grad():
        told = found.model(torch.tensor(rows_of(islands).x))
    y = np.asarray(rows_of(islands).y)
    if loss == "squared":
        cost = float(((told.numpy() - y) ** 2).mean())
    else:
        cost = -float((told if loss == "density" else told[torch.arange(200), torch.tensor(y)]).mean())
    assert cost == pytest.approx(kept["records"][-1]["test/loss"], rel=1e-4)
    masked, _ = boost(replace(job, reducer=atoll.SecureAggregation()), islands)
    np.testing.assert_allclose(masked.weights, found.weights, atol=1e-3)


def test_traffic_follows_the_draw_and_not_the_ensemble() -> None:
    islands, members = clients(), members_of("squared")
    few, many = (
        boost(FedBoost(members=members * times, loss="squared", sampled=2, rounds=20), islands)[1] for times in (1, 5)
    )
    assert {row["members"] for row in few["records"]} >= {0, 1, 2}
    for way, least in (("bytes_down", 13 * 4), ("bytes_up", 8)):
        each = [kept[way] / (3 * sum(row["members"] for row in kept["records"])) for kept in (few, many)]
        assert least < each[0] < 1.3 * each[1] < 1.7 * each[0]


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 12), st.integers(1, 12), st.sampled_from(["weighted", "uniform"]), st.integers(0, 99))
def test_chances_are_at_most_1_and_expect_as_many_as_asked(count: int, expected: int, how: str, seed: int) -> None:
    weights = np.random.default_rng(seed).dirichlet(np.full(count, 0.1))
    chances = draw_chances(weights, expected, how)
    assert chances.sum() == pytest.approx(min(expected, count))
    assert (chances > 0).all()
    assert (chances <= 1 + 1e-12).all()
    if how == "weighted":
        assert (np.diff(chances[np.argsort(weights)]) >= -1e-12).all()
    point = 3 * np.random.default_rng(seed).normal(size=count)
    near = project_on_simplex(point)
    assert near.sum() == pytest.approx(1.0)
    others = np.random.default_rng(seed).dirichlet(np.ones(count), size=50)
    assert (((others - point) ** 2).sum(1) >= ((near - point) ** 2).sum() - 1e-9).all()


def test_a_memory_of_each_row_finds_weights_that_few_members_a_round_do_not() -> None:
    islands, members = clients((60, 60)), members_of("density")
    best = boost(FedBoost(members=members, loss="density", rounds=25, lr=0.5), islands)[1]["records"]
    costs = {}
    for memory in (0.0, 0.9):
        job = FedBoost(members=members, loss="density", sampled=2, rounds=60, lr=0.1, memory=memory)
        costs[memory] = boost(job, islands)[1]["records"][-1]["test/loss"]
    start, end = best[0]["test/loss"], best[-1]["test/loss"]
    assert costs[0.9] - end < 0.5 * (start - end)
    assert costs[0.9] < costs[0.0]


def test_it_weighs_the_models_of_trainings_that_have_ended() -> None:
    islands = population(users=9)
    places = {str(s): [i for i in range(9) if i % 3 == s] for s in range(3)}
    runs = {name: atoll.simulate(leaf(), islands.subset(own), engine="inline") for name, own in places.items()}
    joined = Federated.of(runs, islands, clusters=AttributeClusters("segment"), aggregate="mean")
    found, kept = boost(FedBoost(members=joined, sampled=2, rounds=4, clients=5), islands)
    assert found.names == ("0", "1", "2")
    ensemble = found.ensemble
    assert ensemble.aggregate == "weights"
    assert ensemble.scores["weights"].keys() == {"auc", "accuracy"}
    assert ensemble.scores["mean"] == joined.scores["mean"]
    np.testing.assert_allclose(ensemble.model.weights.numpy(), found.weights, atol=1e-6)
    assert not np.isfinite(ensemble.loss.aggregator), "slopes of rows are released without noise"
    assert [one.name for one in ensemble.loss.releases][-2:] == ["leaf 2", "weights of the ensemble"]
    rows = {name: np.asarray(rows_of(islands).x)[:3, place] for place, name in enumerate("abcd")}
    assert ensemble.predict_proba({**rows, "segment": np.zeros(3)}).shape == (3, 2)
    assert kept["records"][-1]["round"] == 4
    with pytest.raises(AtollError, match="loss='squared' of leaves"):
        FedBoost(members=joined, loss="squared")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sampled": 5}, "sampled=5.*use 1 to 4 members"),
        ({"members": members_of("log")[:1]}, "1 members"),
        ({"members": {"a": 3, "b": nn.Linear(2, 3)}}, "the member 'a' is a int"),
        ({"loss": "hinge"}, "loss='hinge' is not known"),
        ({"sampling": "weights"}, "Did you mean 'weighted'"),
        ({"lr": 0.0}, "lr=0.0"),
        ({"memory": 1.0}, "memory"),
        ({"rounds": 0}, "rounds=0"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        FedBoost(**{"members": members_of("log"), **change})


class Silent(nn.Module):
    """A member that answers one thing."""

    def __init__(self, answer: float) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full((len(x),), self.answer)


class Half(Silent):
    """Expects no row whose first column is below 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x[:, 0] < 0, -torch.inf, self.answer)


def test_members_whose_answers_do_not_fit_are_named() -> None:
    islands = clients((5, 5))
    plain = nn.Linear(2, 2)
    with pytest.raises(AtollError, match="the member '1' knows 2 classes"):
        boost(FedBoost(members=[members_of("log")[0], plain]), islands)
    with pytest.raises(AtollError, match=r"the member '1' answers .* rows with .* not finite"):
        boost(FedBoost(members=[Silent(0.0), Silent(float("nan"))], loss="squared"), islands)
    with pytest.raises(AtollError, match=r"the member '0' answers 200 rows with 400 numbers"):
        boost(FedBoost(members=[plain, plain], loss="density"), islands)
    lost, _ = boost(FedBoost(members=[Silent(0.0), Silent(-np.inf)], loss="density", rounds=2), islands)
    assert lost.weights[0] > 0.5


def test_weights_of_rows_that_no_member_expects_are_refused() -> None:
    """Members say minus infinity: of all rows, and of those below 0."""
    islands = clients((8, 5))
    never = [Silent(-np.inf), Silent(-np.inf)]
    for sampled, memory in ((0, 0.9), (1, 0.9), (1, 0.0)):
        with pytest.raises(AtollError, match="no member expects any row of the clients"):
            boost(FedBoost(members=never, loss="density", rounds=4, sampled=sampled, memory=memory), islands)
    found, _ = boost(FedBoost(members=[Half(0.0), Half(-1.0)], loss="density", rounds=2), islands)
    assert found.weights[0] > 0.5


@pytest.mark.parametrize("members", [None, 3, "ab", nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3))])
def test_a_model_alone_is_no_list_of_members(members: Any) -> None:
    with pytest.raises(ConfigError, match="two PyTorch models in a list"):
        FedBoost(members=members)


def test_a_reducer_is_one() -> None:
    with pytest.raises(AtollError, match="SecureAggregation"):
        FedBoost(members=members_of("log"), reducer="mean")  # type: ignore[arg-type]
