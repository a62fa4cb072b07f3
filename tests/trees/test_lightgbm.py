"""Bagging of trees that LightGBM grows leaf by leaf: with one site LightGBM itself to the bit, its file, its samples, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.core.errors import CompositionError, ConfigError, MissingExtraError
from atoll.data import Dataset, Islands
from atoll.trees import Trees, model_file
from atoll.trees.leafwise import one_side_sample
from atoll.trees.model_files import lightgbm_trees
from atoll.trees.objectives import LOGISTIC, TreeLoss
from atoll.trees.tree import auc

RNG = np.random.default_rng(3)
WHOLE = RNG.normal(size=(900, 5)).astype(np.float32)
SIGNAL = WHOLE[:, 0] + WHOLE[:, 1] * WHOLE[:, 2]
# The last feature is missing nowhere in training, so LightGBM takes 0 for it where it is missing later.
HOLES = (RNG.random((900, 5)) < 0.15) & (np.arange(5) < 4)
X = np.where(HOLES, np.float32(np.nan), WHOLE)
LABELS = {
    "binary": (SIGNAL > 0).astype(np.int64),
    "classes": np.digitize(SIGNAL, [-0.5, 0.5]),
    "numbers": np.round(SIGNAL, 2).astype(np.float32),
}
NAMES = {"binary": "binary", "classes": "multiclass", "numbers": "regression"}


def islands(kind="binary", parties=3):
    data = Dataset({"x": X, "y": LABELS[kind]}, missing_features=True)
    rows = np.array_split(np.arange(len(X)), [200, 500][: parties - 1])
    return Islands.from_datasets({f"site-{i}": data.take(part) for i, part in enumerate(rows)})


def grow(data, **settings):
    given = {"scheme": "lightgbm", "rounds": 5, "leaves": 9, "max_depth": 8, **settings}
    return atoll.simulate(Trees(**given), data, engine="inline", progress=False, seed=1).outcome


@pytest.fixture(scope="module")
def lightgbm():
    return pytest.importorskip("lightgbm", reason="pip install lightgbm -c constraints.txt", exc_type=ImportError)


@pytest.mark.parametrize("kind", LABELS)
def test_with_one_site_it_is_ordinary_lightgbm_to_the_bit(lightgbm, kind):
    found = grow(islands(kind, 1), rounds=8)
    settings = {
        "objective": NAMES[kind], "learning_rate": 0.3, "num_leaves": 9, "max_depth": 8, "lambda_l2": 1.0, "max_bin": 256,
        "min_sum_hessian_in_leaf": 1.0, "num_threads": 1, "deterministic": True, "force_row_wise": True, "verbosity": -1,
        "num_class": 3 if kind == "classes" else 1,
    }  # fmt: skip
    start = np.tile(found.base, (len(X), 1))
    rows = lightgbm.Dataset(X, LABELS[kind], init_score=start.squeeze(), params={"verbosity": -1, "max_bin": 256})
    ordinary = lightgbm.train(settings, rows, 8)
    theirs = lightgbm_trees(ordinary.model_to_string(), found.objective.outputs)
    assert len(theirs) == len(found.trees) == 8 * found.objective.outputs
    for mine, other in zip(found.trees, theirs, strict=True):
        for name in ("feature", "threshold", "left", "value", "default_left", "group"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(other, name))
    fresh = np.where(RNG.random(X.shape) < 0.3, np.nan, RNG.normal(size=X.shape)).astype(np.float32)
    raw = ordinary.predict(fresh, raw_score=True).reshape(len(X), -1) + found.base
    np.testing.assert_allclose(found.margins(fresh), raw, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", LABELS)
def test_lightgbm_reads_the_file_and_predicts_the_same(lightgbm, kind):
    found = grow(islands(kind))
    assert len(found.trees) == 3 * 5 * found.objective.outputs
    booster = lightgbm.Booster(model_str=model_file(found).decode())
    fresh = np.where(RNG.random(X.shape) < 0.3, np.nan, RNG.normal(size=X.shape)).astype(np.float32)
    raw = booster.predict(fresh, raw_score=True).reshape(len(X), -1)
    np.testing.assert_allclose(raw, found.margins(fresh), rtol=0, atol=1e-12)
    np.testing.assert_allclose(booster.predict(fresh), found.predict(fresh), rtol=1e-5, atol=1e-6)
    assert booster.feature_name() == list(found.features)


def test_a_round_adds_each_partys_tree_by_its_share_and_bags_are_better_than_sites(lightgbm):
    (first, second, third) = grow(islands(), rounds=1).trees
    alone = [grow(islands().subset([i]), rounds=1).trees[0] for i in range(3)]
    base = grow(islands(), rounds=1).base
    assert base.shape == (1,)
    for mine, own, share in zip((first, second, third), alone, (200 / 900, 300 / 900, 400 / 900), strict=True):
        assert len(mine) > 3
        # A site alone has another first guess, so its leaves differ; the shares are of the rows.
        assert np.abs(mine.value).max() < share * (np.abs(own.value).max() + 1)
    held = np.where(RNG.random((2000, 5)) < 0.15, np.nan, RNG.normal(size=(2000, 5))).astype(np.float32)
    whole = np.nan_to_num(held)
    truth = whole[:, 0] + whole[:, 1] * whole[:, 2] > 0
    together = auc(truth, grow(islands(), rounds=20).predict(held))
    assert together > max(auc(truth, grow(islands().subset([i]), rounds=20).predict(held)) for i in range(3))


def test_one_side_sampling_keeps_large_gradients_and_sums_without_bias(lightgbm):
    objective, random = TreeLoss(LOGISTIC), np.random.default_rng(0)
    margin, targets = RNG.normal(size=(400, 1)), RNG.integers(0, 2, 400).astype(float)
    g, h = objective.gradients(margin.astype(np.float32), targets)
    size = np.abs(g * h)[:, 0]
    sums = []
    for _ in range(300):
        kept, weights = one_side_sample(objective, margin, targets, (0.2, 0.1), random)
        assert len(kept) == 120
        assert set(np.argsort(-size)[:80]) <= set(kept.tolist())
        sums.append((g[kept, 0] * weights[kept]).sum())
    assert np.mean(sums) == pytest.approx(g.sum(), abs=4 * np.std(sums) / np.sqrt(300))
    sampled, plain = grow(islands(), rounds=8, one_side=(0.2, 0.2)), grow(islands(), rounds=8)
    for early, same in zip(sampled.trees[:12], plain.trees[:12], strict=True):  # rounds below 1 / 0.3 take all rows
        np.testing.assert_array_equal(early.value, same.value)
    assert any(len(a) != len(b) or (a.value != b.value).any() for a, b in zip(sampled.trees, plain.trees, strict=True))
    assert auc(LABELS["binary"], sampled.predict(X)) > 0.9


def test_a_party_that_can_split_nothing_adds_nothing(lightgbm):
    data = Dataset({"x": X, "y": LABELS["binary"]}, missing_features=True)
    found = grow(Islands.from_datasets([data.take(slice(0, 10)), data.take(slice(10, 900))]), rounds=2)
    assert [len(tree) for tree in found.trees[::2]] == [1, 1]
    assert [float(tree.value[0]) for tree in found.trees[::2]] == [0.0, 0.0]
    booster = lightgbm.Booster(model_str=model_file(found).decode())
    np.testing.assert_allclose(booster.predict(X, raw_score=True), found.margins(X)[:, 0], rtol=0, atol=1e-12)


def test_killed_and_resumed_it_is_the_same(lightgbm, tmp_path):
    whole = grow(islands(), rounds=4)
    job = {"scheme": "lightgbm", "leaves": 9, "max_depth": 8}
    more = {"engine": "inline", "progress": False, "seed": 1, "folder": tmp_path / "run"}
    atoll.simulate(Trees(rounds=2, **job), islands(), **more)
    again = atoll.simulate(Trees(rounds=4, **job), islands(), resume=True, **more)
    np.testing.assert_array_equal(again.outcome.margins(X), whole.margins(X))
    assert (tmp_path / "run" / "model.txt").read_bytes() == model_file(whole)


def test_settings_that_do_not_go_together_are_refused(monkeypatch):
    with pytest.raises(ConfigError, match="leaves=1"):
        Trees(scheme="lightgbm", leaves=1)
    for wrong in ((0.5,), (0.8, 0.5), (0.0, 0.5)):
        with pytest.raises(ConfigError, match="one_side="):
            Trees(scheme="lightgbm", one_side=wrong)
    with pytest.raises(CompositionError, match="trees=3 with scheme='lightgbm'"):
        Trees(scheme="lightgbm", trees=3)
    with pytest.raises(CompositionError, match=r"one_side=\(0\.2, 0\.1\) with scheme='bagging'"):
        Trees(scheme="bagging", one_side=(0.2, 0.1))
    monkeypatch.setitem(__import__("sys").modules, "lightgbm", None)
    with pytest.raises(MissingExtraError, match=r'pip install "atoll\[lightgbm\]"'):
        grow(islands(), rounds=1)
