"""Private summaries: the hash is a kernel, choices never get worse, MWEM learns, and what is released is in the ledger."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.errors import ConfigError, DataError
from atoll.core.event import Ledger
from atoll.core.requests.island import Secret
from atoll.privacy import spent
from atoll.statistics.summarising import DataSummary, Mwem, RandomFeatures, choose_points, discrepancy


@pytest.mark.parametrize("width", [0.7, 2.0])
def test_products_of_random_features_are_the_gaussian_kernel_up_to_one_over_the_root_of_their_number(width):
    rows = np.random.default_rng(0).normal(size=(30, 4))
    squares = ((rows[:, None] - rows) ** 2).sum(axis=2)
    kernel = np.exp(-squares / (2 * width**2))
    errors = []
    for count in (100, 400, 1600, 6400):
        of_seeds = [RandomFeatures(count=count, width=width, seed=s).of(rows) for s in range(5)]
        errors.append(np.mean([np.sqrt(np.mean((phi @ phi.T - kernel) ** 2)) for phi in of_seeds]))
    slope = np.polyfit(np.log([100, 400, 1600, 6400]), np.log(errors), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.12)
    assert errors[-1] < 0.02


@given(st.integers(1, 40), st.integers(0, 1000))
@settings(max_examples=20)
def test_no_row_has_longer_features_than_declared(count, seed):
    hashed = RandomFeatures(count=count, seed=seed)
    rows = np.random.default_rng(seed).normal(scale=100, size=(50, 3))
    assert np.linalg.norm(hashed.of(rows), axis=1).max() <= hashed.length + 1e-12


@given(st.integers(0, 10_000), st.integers(1, 12))
@settings(max_examples=30)
def test_the_discrepancy_never_grows_whatever_the_target(seed, size):
    draw = np.random.default_rng(seed)
    phi, target = draw.normal(size=(15, 6)), draw.normal(size=6)
    found = choose_points(phi, target, size)
    assert all(b <= a + 1e-12 for a, b in zip(found.discrepancies, found.discrepancies[1:], strict=False))
    assert len(set(found.points.tolist())) == size
    assert found.weights.sum() == pytest.approx(1.0)
    assert (found.weights >= 0).all()
    assert found.discrepancies[-1] == pytest.approx(((found.weights @ phi[found.points] - target) ** 2).sum())


def test_the_first_point_and_each_share_are_the_best_by_search():
    draw = np.random.default_rng(3)
    phi, target = draw.normal(size=(8, 4)), draw.normal(size=4)
    one, two = (choose_points(phi, target, size) for size in (1, 2))
    assert one.discrepancies[0] == pytest.approx(min(((z - target) ** 2).sum() for z in phi))
    mean = phi[one.points[0]]
    tried = [((mean + g * (z - mean) - target) ** 2).sum() for z in phi for g in np.linspace(0, 1, 2001)]
    assert two.discrepancies[1] == pytest.approx(min(tried), abs=1e-5)


def test_mwem_learns_a_histogram_and_better_with_more_epsilon():
    draw = np.random.default_rng(0)
    counts = np.array([400.0, 100, 50, 10, 5, 5, 0, 30])
    queries = (draw.random((40, 8)) < 0.5).astype(float)
    uniform = np.full(8, counts.sum() / 8)

    def error(epsilon):
        made = [Mwem(epsilon=epsilon, steps=40).histogram(counts, queries, Secret(s)) for s in range(5)]
        assert np.allclose([one.sum() for one in made], counts.sum())
        return np.mean([np.abs(queries @ (one - counts)).max() for one in made])

    assert error(20.0) < 0.5 * np.abs(queries @ (uniform - counts)).max()
    assert error(20.0) < error(0.02)


def test_mwem_costs_its_epsilon():
    events = Mwem(epsilon=1.5, steps=7).events
    assert sum(event.epsilon * event.count for event in events) == pytest.approx(1.5)


def data():
    rows = atoll.data.digits()
    public = rows.take(slice(0, 150))
    return atoll.data.iid(rows.take(slice(150, 1500)), parties=6, seed=0).with_public(public), public


def run(job, islands, folder=None, **how):
    return atoll.simulate(job.program(islands), islands, engine="inline", folder=folder, progress=False, **how)


@pytest.mark.parametrize(("method", "epsilon"), [("features", 3.0), ("mwem", 8.0)])
def test_points_stand_for_rows_that_nobody_saw(method, epsilon, tmp_path):
    islands, public = data()
    hashed = RandomFeatures(count=100, width=3.0)
    job = DataSummary(size=15, epsilon=epsilon, method=method, features=hashed, steps=15)
    found = run(job, islands, tmp_path / "run")
    truth = hashed.of(islands.pooled().x).mean(axis=0)
    phi = hashed.of(public.x)
    chosen = found.chosen.weights @ phi[found.chosen.points]
    by_chance = np.mean([discrepancy(phi[np.random.default_rng(s).choice(150, 15)].mean(0), truth) for s in range(20)])
    assert discrepancy(chosen, truth) < by_chance
    assert found.rows == islands.sizes.sum()
    costs = spent(Ledger(tmp_path / "run" / "checkpoints" / "ledger.jsonl"), 1e-5, "pld", "server", "replace-one")
    assert len(costs) == 6
    assert max(costs.values()) <= epsilon * (1 + 1e-5)


def test_in_a_secure_sum_the_parties_share_the_noise():
    islands, _ = data()
    hashed = RandomFeatures(count=400, width=3.0)
    truth = hashed.of(islands.pooled().x).mean(axis=0)
    job = DataSummary(size=5, epsilon=0.5, features=hashed)
    far = {}
    for name, reducer in (("plain", {}), ("secure", {"reducer": atoll.SecureAggregation(masks="virtual")})):
        one = DataSummary(size=5, epsilon=0.5, features=hashed, **reducer)
        far[name] = discrepancy(run(one, islands).target, truth)
    scale = job.noise * 2 * math.sqrt(2) * math.sqrt(400) / islands.sizes.sum()
    assert far["secure"] == pytest.approx(scale, rel=0.15)
    assert far["plain"] == pytest.approx(scale * math.sqrt(6), rel=0.15)


def test_bad_input_is_refused():
    islands, _ = data()
    with pytest.raises(DataError, match="has 0 public rows"):
        DataSummary(size=5, epsilon=1.0).program(islands.with_public(None))
    with pytest.raises(ConfigError, match="method='guess'"):
        DataSummary(size=5, epsilon=1.0, method="guess")
    with pytest.raises(ConfigError, match=r"queries outside \[0, 1\]"):
        Mwem().histogram(np.ones(2), np.array([[2.0, 0.0]]), Secret(0))
    with pytest.raises(ConfigError, match="size=9"):
        choose_points(np.ones((3, 2)), np.ones(2), 9)
    with pytest.raises(ConfigError, match="width=0"):
        RandomFeatures(width=0)


def test_no_order_of_columns_changes_random_features_and_chosen_points():
    x, names, order = np.random.default_rng(3).normal(size=(60, 3)), ("dose", "age", "f2"), [2, 0, 1]
    one, other = RandomFeatures(columns=names), RandomFeatures(columns=[names[k] for k in order])
    np.testing.assert_allclose(one.of(x), other.of(x[:, order]), atol=1e-12)
    found = []
    for places in ([0, 1, 2], order):
        rows = atoll.data.Dataset({"x": x[:, places]}, features=[names[k] for k in places])
        islands = atoll.data.Islands.from_datasets({"a": rows.take(slice(20, 40)), "b": rows.take(slice(40, 60))})
        job = DataSummary(size=4, epsilon=1e4, features=RandomFeatures(count=50))
        found.append(run(job, islands.with_public(rows.take(slice(0, 20)))).chosen.points)
    np.testing.assert_array_equal(*found)
