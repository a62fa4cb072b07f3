"""Federated ensembles: leaves in one block are those alone, ways to join follow their formulas, and bad clusters are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll.core.errors import CheckpointError, CompositionError, ConfigError, DataError
from atoll.data import Dataset, Islands
from atoll.ensemble import (
    AttributeClusters,
    CentroidClusters,
    Federated,
    FederatedEnsemble,
    HashClusters,
    JoinedLeaves,
    ListedClusters,
    MixtureClusters,
    OverArch,
    RandomClusters,
    shrinking_widths,
)
from atoll.ensemble.clusters import form_clusters
from atoll.ensemble.joining import fit_gate, over_arch_inputs
from atoll.ensemble.model import score_interval
from atoll.labels import Committee


def population(users: int = 12, rows: int = 12, segments: int = 3, seed: int = 0, more: Any = None) -> Islands:
    """Users of a few segments, whose labels follow another column in each."""
    draw = np.random.default_rng(seed)
    parts = {}
    for i in range(users):
        s = i % segments
        x = draw.normal(size=(rows, 4)).astype(np.float32)
        x[:, 3] = s * 2 + 0.1 * x[:, 3]
        y = (x[:, s] + 0.3 * draw.normal(size=rows) > 0).astype(np.int64)
        columns = {"x": x, "y": y, "segment": np.full(rows, s), **({} if more is None else more(i, y))}
        parts[f"u{i}"] = Dataset(columns, features=["a", "b", "c", "d"])
    test = Dataset(
        {name: np.concatenate([one[name] for one in parts.values()]) for name in ("x", "y", "segment")},
        features=["a", "b", "c", "d"],
    )
    return Islands.from_datasets(parts, test=test)


def leaf(**settings: Any) -> atoll.Training:
    """The training of a small leaf."""
    given = {"algorithm": atoll.FedAvg(lr=0.3, batch_size=5), "rounds": 3, "selection": atoll.Uniform(2), **settings}
    return atoll.Training(**{"model": atoll.models.mlp(4, 2, (3,)), **given})


def rows_of(islands: Islands) -> Dataset:
    """The test rows."""
    assert islands.test is not None
    return islands.test


def quiet(job: atoll.Training) -> atoll.Training:
    """The training, without evaluation of a model on rows of all segments."""
    return job.replace(evaluation=atoll.learn.Evaluation(server=False))


def test_leaves_in_one_block_are_the_leaves_alone() -> None:
    islands, job = population(), leaf(algorithm=atoll.algorithms.FedProx(lr=0.3, mu=0.1, batch_size=5, decay=0.9))
    made = atoll.simulate(Federated(clusters=AttributeClusters("segment"), leaf=job, aggregate="mean"), islands, seed=3)
    assert made.outcome.block == ""
    assert "3 of 3; ended" in str(made)  # a last row of scores is no round
    first, leaves = made.prepared.sections(made.outcome)  # what its report leads with
    assert first["tiles"] == [["test auc", f"{made.outcome.scores['mean']['auc']:.4f}", "mean"]]
    assert [way for way, *_ in first["tables"][0]["rows"]] == list(made.outcome.scores) == first["figures"][0]["labels"]
    assert leaves["tables"][0]["rows"] == [["0", "4"], ["1", "4"], ["2", "4"]]
    for s, found in enumerate(made.outcome.leaves):
        alone = atoll.simulate(quiet(job), islands.subset([i for i in range(12) if i % 3 == s]), seed=3).params
        for name, value in found.state_dict().items():
            assert np.allclose(value, alone[name], atol=1e-6)


def test_what_a_block_cannot_do_trains_leaves_beside_each_other() -> None:
    """A clip on the way up: one leaf is then a training of its own, in a scope of its own."""
    islands, job = (
        population(),
        leaf(
            algorithm=atoll.FedAvg(lr=0.3, batch_size=None),
            selection=atoll.selection.Everyone(),
            uplink=[atoll.stages.Clip(0.5)],
        ),
    )
    made = atoll.simulate(Federated(clusters=AttributeClusters("segment"), leaf=job, aggregate="mean"), islands)
    assert made.outcome.block == "uplink"
    assert "3 of 3; ended" in str(made)
    alone = quiet(job)
    draws = atoll.simulate(quiet(leaf()), islands).params  # another training of this seed starts from other weights
    for found in made.outcome.leaves:
        assert not np.array_equal(found.state_dict()["1.weight"], draws["1.weight"])
    assert len({one.state_dict()["1.weight"].numpy().tobytes() for one in made.outcome.leaves}) == 3
    assert alone.uplink == job.uplink


def test_one_leaf_with_the_mean_is_the_training_bit_for_bit() -> None:
    islands = population()
    made = atoll.simulate(Federated(clusters=RandomClusters(1), leaf=leaf(), aggregate="mean"), islands, seed=5).outcome
    alone = atoll.simulate(leaf(), islands, seed=5)
    for name, value in made.leaves[0].state_dict().items():
        assert np.array_equal(value, alone.params[name])
    x = torch.tensor(rows_of(islands).x)
    assert torch.equal(made.model(x), alone.model(x).log_softmax(-1))


def nets(count: int = 3, outputs: int = 2) -> list[nn.Module]:
    """Small networks with fixed weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, outputs)) for _ in range(count)]


def test_ways_to_join_follow_their_formulas() -> None:
    members = nets()
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(1))
    chances = torch.stack([one(x).softmax(-1) for one in members])
    given = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    assert torch.allclose(JoinedLeaves(members, "mean")(x), Committee(members)(x))
    assert torch.allclose(JoinedLeaves(members, "weights", given)(x), Committee(members, given.numpy())(x), atol=1e-6)
    middle = JoinedLeaves(members, "median")(x).exp()
    assert torch.allclose(middle, chances.median(0).values / chances.median(0).values.sum(-1, keepdim=True), atol=1e-6)
    assert torch.allclose(JoinedLeaves(members, "max")(x).exp()[:, 1], chances[..., 1].max(0).values, atol=1e-6)
    for name in ("mean", "median", "max"):  # the order of leaves does not matter
        assert torch.allclose(JoinedLeaves(members, name)(x), JoinedLeaves(members[::-1], name)(x), atol=1e-6)
    leaf_of = torch.tensor([0, 1, 2, 2, 1, 0, 1])
    own = JoinedLeaves(members, "own_leaf")(x, leaf_of).exp()
    assert torch.allclose(own, torch.stack([chances[c, i] for i, c in enumerate(leaf_of.tolist())]), atol=1e-6)
    gate = torch.rand(3, 3, generator=torch.Generator().manual_seed(2)).softmax(-1)
    mixed = torch.stack([(gate[c][:, None] * chances[:, i]).sum(0) for i, c in enumerate(leaf_of.tolist())])
    assert torch.allclose(JoinedLeaves(members, "gate", gate)(x, leaf_of).exp(), mixed, atol=1e-6)
    with pytest.raises(ConfigError, match="needs the leaf"):
        JoinedLeaves(members, "gate", gate)(x)
    three = JoinedLeaves(nets(outputs=3), "max")(x).exp()
    assert torch.allclose(three.sum(-1), torch.ones(7))


def test_the_over_arch_takes_predictions_hidden_layers_or_both() -> None:
    members, x = nets(), torch.ones(2, 4)
    assert [over_arch_inputs(members, x, how).shape[1] for how in ("predictions", "hidden", "both")] == [3, 15, 18]

    class Wrapped(nn.Module):
        def __init__(self, inside: nn.Module) -> None:
            super().__init__()
            self.inside = inside

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.inside(x)
            return made

    assert torch.equal(
        over_arch_inputs([Wrapped(one) for one in members], x, "both"), over_arch_inputs(members, x, "both")
    )
    with pytest.raises(CompositionError, match="predictions"):
        over_arch_inputs([nn.Identity()], x, "hidden")


def test_the_gate_starts_at_the_own_leaf_and_moves_where_labels_say_so() -> None:
    """The last leaf is right of all users, of whom only those of the first leaf have labels here."""
    y = np.array([0, 1] * 20)
    right = torch.stack([torch.tensor([0.1, 0.9]).log()[torch.tensor([1 - k, k])] for k in y.tolist()])
    logs = torch.stack([right.flip(-1), right.flip(-1), right])
    gate = fit_gate(logs, y, np.zeros(40, np.int64))
    assert gate[0].argmax() == 2
    assert torch.allclose(gate[1], torch.tensor([0.005, 0.99, 0.005]), atol=1e-6)
    assert torch.allclose(gate.sum(-1), torch.ones(3))


def test_an_ensemble_learns_what_segments_need_and_answers_raw_rows(tmp_path: Path) -> None:
    islands = population(users=24, rows=30)
    job = Federated(clusters=AttributeClusters("segment"), leaf=leaf(rounds=10), opt_in=["u0", "u3", "u7"])
    made = atoll.simulate(job, islands).outcome
    scores = {name: one["auc"] for name, one in made.scores.items()}
    assert set(scores) == {"mean", "logits", "median", "max", "weights", "over_arch", "gate", "own_leaf"}
    assert scores["gate"] > scores["mean"] + 0.05
    assert scores["gate"] > scores["own_leaf"] - 0.01  # users of segment 2 gave no labels
    test = rows_of(islands)
    rows = {"segment": test["segment"], **{name: test.x[:, k] for k, name in reversed(list(enumerate("abcd")))}}
    assert (made.predict(rows).astype(int) == test.y).mean() == pytest.approx(made.scores["gate"]["accuracy"])
    made.save(tmp_path)
    read = FederatedEnsemble.load(tmp_path, atoll.models.mlp(4, 2, (3,)))
    for name in made.joined:
        assert np.allclose(read.using(name).predict_proba(rows), made.using(name).predict_proba(rows))
    assert read.parameters == made.parameters
    with pytest.raises(CheckpointError, match="model of its leaves"):
        FederatedEnsemble.load(tmp_path, atoll.models.mlp(4, 2, (5,)))
    with pytest.raises(DataError, match="is no cluster"):
        made.predict({**rows, "segment": test["segment"] + 5})
    with pytest.raises(DataError, match="no column 'segment'"):
        made.predict({name: rows[name] for name in "abcd"})


def test_opt_in_users_train_no_leaf() -> None:
    """Whatever their labels are, leaves are the same."""
    turned = population(more=lambda i, y: {"y": 1 - y} if i == 4 else {})
    job = Federated(clusters=AttributeClusters("segment"), leaf=leaf(), opt_in=["u4"])
    one, two = (atoll.simulate(job, islands).outcome for islands in (population(), turned))
    assert all(torch.equal(a, b) for a, b in zip(*(n.leaves[1].state_dict().values() for n in (one, two)), strict=True))
    drawn = Federated(clusters=RandomClusters(2), leaf=leaf(), opt_in=0.25).draw_opt_in([f"u{i}" for i in range(12)])
    assert len(drawn) == 3


def test_the_over_arch_by_federated_learning_leaves_the_leaves_alone() -> None:
    islands = population()
    job = Federated(
        clusters=AttributeClusters("segment"), leaf=leaf(), aggregate="over_arch", overarch=OverArch(hidden=(4,))
    )
    made = atoll.simulate(job, islands).outcome
    same = atoll.simulate(
        Federated(clusters=AttributeClusters("segment"), leaf=leaf(), aggregate="mean"), islands
    ).outcome
    assert all(
        torch.equal(a, b)
        for a, b in zip(made.leaves[0].state_dict().values(), same.leaves[0].state_dict().values(), strict=True)
    )
    assert made.loss is not None
    assert [one.name for one in made.loss.releases] == ["leaf 0", "leaf 1", "leaf 2", "over-arch"]
    assert made.scores["over_arch"]["auc"] > 0.5


@pytest.mark.parametrize("rule", [CentroidClusters(3, ["d"]), MixtureClusters(3, ["d"])])
def test_clusters_of_distances_find_the_segments(rule: CentroidClusters) -> None:
    islands = population()
    found = form_clusters(rule, islands)
    leaves = [found.users[f"u{i}"] for i in range(12)]
    assert all(leaves[i] == leaves[i % 3] for i in range(12))
    assert len(set(leaves)) == 3
    assert np.array_equal(found.leaf_of({"d": np.array([0.0, 2.0, 4.0])}), leaves[:3])


def test_drawn_and_hashed_clusters_follow_names() -> None:
    islands = population()
    found = form_clusters(RandomClusters(4), islands)
    assert sorted(map(len, found.members(list(islands.names)))) == [3, 3, 3, 3]
    turned = form_clusters(RandomClusters(4), islands.subset(list(range(12))[::-1]))
    assert dict(found.users) == dict(turned.users)
    with pytest.raises(DataError, match="unknown user"):
        found.leaf_of({"user": ["u99"]})
    hashed = form_clusters(HashClusters(4), islands)
    assert np.array_equal(hashed.leaf_of({"user": ["u99"]}), hashed.leaf_of({"user": ["u99", "u0"]})[:1])
    assert (
        form_clusters(HashClusters(4, "segment"), islands).users["u0"]
        == form_clusters(HashClusters(4, "segment"), islands).users["u3"]
    )


@pytest.mark.parametrize(
    ("rule", "more", "said"),
    [
        (AttributeClusters("y"), None, "is the label"),
        (AttributeClusters("copy"), lambda i, y: {"copy": np.where(y > 0, "buys", "none")}, "tells the label of every row"),
        (CentroidClusters(2, ["copy"]), lambda i, y: {"copy": 3.0 - 2e9 * y}, "tells the label"),
        (CentroidClusters(2, ["rate"]), lambda i, y: {"rate": np.full(len(y), 7 * y.mean())}, "every user's mean label"),
        (AttributeClusters("mixed"), lambda i, y: {"mixed": np.arange(len(y)) % 2 + i}, "its leaves would overlap"),
        (AttributeClusters("segmnt"), None, "there is no column 'segmnt'"),
        (CentroidClusters(20, ["d"]), None, "do not make 20 clusters"),
        (ListedClusters({"a": ["u0"]}), None, "is in no leaf"),
        (RandomClusters(8), None, "has 1 users to train it"),
    ],
)  # fmt: skip
def test_bad_clusters_are_refused(rule: Any, more: Any, said: str) -> None:
    with pytest.raises((CompositionError, DataError), match=said):
        Federated(clusters=rule, leaf=leaf()).prepare(population(more=more))


def test_settings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(CompositionError, match="in the leaves 'a' and 'b'"):
        ListedClusters({"a": ["u0", "u1"], "b": ["u1"]})
    with pytest.raises(ConfigError, match="learned on labels of opt-in users"):
        atoll.simulate(Federated(clusters=RandomClusters(2), leaf=leaf(rounds=1), aggregate="weights"), population())
    with pytest.raises(ConfigError, match="who is not there"):
        Federated(clusters=RandomClusters(2), leaf=leaf(), opt_in=["u99"]).prepare(population())
    with pytest.raises(ConfigError, match="aggregate='mode'"):
        Federated(clusters=RandomClusters(2), leaf=leaf(), aggregate="mode")


def test_a_size_budget_solves_the_widths() -> None:
    """512 inputs that shrink by 4: 128, 32, 8 and one output have 70,065 numbers (Hejazinia et al. 2022, section 5.1, and arithmetic)."""
    widths = shrinking_widths(512, 1, 4 * 70_065)
    assert widths == (128, 32, 8)
    assert sum(p.numel() for p in atoll.models.mlp(512, 1, widths)().parameters()) == 70_065
    assert shrinking_widths(512, 1, 4 * 70_064) == (102, 20, 4)
    assert shrinking_widths(512, 1, 10**9) == (512, 512, 512)
    with pytest.raises(ConfigError, match="the narrowest leaf has 2076 bytes"):
        shrinking_widths(512, 1, 100)


def test_intervals_are_those_of_their_sources() -> None:
    """Hanley and McNeil's own example, 51 and 58 images with an area of .893, has a standard error of .032; shares are Wilson's, as SciPy has them."""
    low, high = score_interval("auc", 0.893, np.repeat([1, 0], [51, 58]), 2) or (0.0, 0.0)
    assert (high - low) / 2 / 1.96 == pytest.approx(0.032, abs=1e-3)
    assert score_interval("auc", 0.893, np.repeat([1, -1], [51, 58]), 2) == (low, high)
    stats = pytest.importorskip("scipy.stats")
    for right, count in ((5, 10), (0, 7), (30, 30)):
        wilson = stats.binomtest(right, count).proportion_ci(method="wilson")
        found = score_interval("accuracy", right / count, np.zeros(count), 3)
        assert found == pytest.approx((wilson.low, wilson.high), abs=1e-12)
    assert score_interval("auc", 0.9, np.array([0, 1, 2]), 3) is None
    assert score_interval("auc", 0.9, np.ones(3), 2) is None
    assert score_interval("auc", 1.0, np.array([0, 1]), 2) == (1.0, 1.0)


def test_the_report_has_an_interval_of_each_way_and_a_line_at_the_one_in_use() -> None:
    made = atoll.simulate(
        Federated(clusters=AttributeClusters("segment"), leaf=leaf(rounds=1), aggregate="mean"), population(), seed=3
    )
    first = made.prepared.sections(made.outcome)[0]
    picture, table = first["figures"][0], first["tables"][0]
    assert (picture["kind"], picture["line"]) == ("intervals", made.outcome.scores["mean"]["auc"])
    assert table["head"][-1] == "auc, 95 % interval"
    assert table["rows"][0][-1] == f"{picture['low'][0]:.4f} to {picture['high'][0]:.4f}"
    assert all(
        low < value < high for low, value, high in zip(picture["low"], picture["values"], picture["high"], strict=True)
    )


def test_features_may_be_called_as_columns_that_all_data_sets_have() -> None:
    draw = np.random.default_rng(2)
    x, y = draw.normal(size=(4, 6, 2)), np.tile([0, 1], 3)
    parts = {
        f"u{i}": Dataset({"x": x[i], "y": y}, features=["y", "x"], task="classification", classes=2) for i in range(4)
    }
    islands = Islands.from_datasets(parts)
    made = form_clusters(CentroidClusters(2, ["x"]), islands)
    assert made.rule["mean"] == pytest.approx([x[:, :, 1].mean()])
    assert form_clusters(CentroidClusters(2, ["y"]), islands).rule["mean"] == pytest.approx([x[:, :, 0].mean()])
    assert made.leaf_of({"x": x[0], "y": y}).shape == (6,)
    twin = {name: Dataset({"x": np.stack([y, y], 1), "y": y}, features=["y", "x"], task="classification", classes=2) for name in parts}  # fmt: skip
    with pytest.raises(CompositionError, match="tells the label"):
        form_clusters(CentroidClusters(2, ["y"]), Islands.from_datasets(twin))


def test_an_opt_in_user_counts_once_and_only_results_are_joined() -> None:
    islands = population()
    with pytest.raises(ConfigError, match="opt_in names 'u0' twice"):
        Federated(clusters=AttributeClusters("segment"), leaf=leaf(rounds=1), opt_in=["u0", "u0"]).prepare(islands)
    for results in ({}, {"north": 3}):
        with pytest.raises(ConfigError, match="by the name of the leaf"):
            Federated.of(results, islands)
