"""Trees over rows that lack features: XGBoost's own trees with its own cuts, its file, its boosting, masked sums, and who refuses such rows."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

import atoll
from atoll.core.errors import CompositionError, ConfigError, DataError
from atoll.data import Dataset, Islands
from atoll.fitting import Columns, Fit
from atoll.reducers import SecureAggregation
from atoll.secure import FixedPoint
from atoll.statistics import Statistics
from atoll.trees import Trees, model_file, parties

xgboost = pytest.importorskip("xgboost")
RNG = np.random.default_rng(11)
WHOLE = RNG.normal(size=(600, 5)).astype(np.float32)
SIGNAL = WHOLE[:, 0] + WHOLE[:, 1] * WHOLE[:, 2]
# What is missing tells something: rows lack feature 0 mostly where it is small. The last feature is nowhere.
HOLES = (RNG.random((600, 5)) < 0.15) | (np.arange(5) == 4)
HOLES[:, 0] |= (WHOLE[:, 0] < -0.5) & (RNG.random(600) < 0.5)
X = np.where(HOLES, np.float32(np.nan), WHOLE)
LABELS = {
    "binary": (SIGNAL > 0).astype(np.int64),
    "classes": np.digitize(SIGNAL, [-0.5, 0.5]),
    "numbers": SIGNAL.astype(np.float64),
}
NAMES = {"binary": "binary:logistic", "classes": "multi:softprob", "numbers": "reg:squarederror"}
ROUGH = np.clip(np.round(2 * X), -3, 3)  # every value has a bin of its own, here and at XGBoost


def islands(x=X, kind="binary", parties=3, **more):
    data = Dataset({"x": x, "y": LABELS[kind]}, missing_features=True)
    rows = np.array_split(np.arange(len(x)), [10, 250][: parties - 1])
    return Islands.from_datasets({f"site-{i}": data.take(part) for i, part in enumerate(rows)}, **more)


def grow(data, **settings):
    return atoll.simulate(
        Trees(**{"rounds": 4, "max_depth": 4, **settings}), data, engine="inline", progress=False
    ).outcome


def theirs(x, kind, rounds, **more):
    settings = {"objective": NAMES[kind], "tree_method": "hist", "max_depth": 4, **more}
    if kind == "classes":
        settings["num_class"] = 3
    return xgboost.train(settings, xgboost.DMatrix(x, LABELS[kind]), rounds)


@pytest.mark.parametrize("kind", LABELS)
def test_where_bins_are_xgboosts_so_are_the_trees(kind):
    found = grow(islands(ROUGH, kind), rounds=8)
    np.testing.assert_allclose(found.predict(ROUGH), theirs(ROUGH, kind, 8).predict(xgboost.DMatrix(ROUGH)), atol=2e-4)
    assert any(tree.default_left.any() for tree in found.trees)
    assert any((~tree.default_left & (tree.feature >= 0)).any() for tree in found.trees)


@pytest.mark.parametrize("x", [WHOLE, X], ids=["whole", "missing"])
def test_with_xgboosts_own_cuts_the_trees_are_those_of_xgboost_on_the_union(x):
    starts, values = xgboost.QuantileDMatrix(x, LABELS["binary"], max_bin=64).get_quantile_cut()
    between = [values[a + 1 : b - 1] for a, b in itertools.pairwise(starts)]
    found = grow(islands(x), rounds=6, cuts={f"x{i}": cuts.tolist() for i, cuts in enumerate(between)})
    booster = theirs(x, "binary", 6, max_bin=64, base_score=found.base_score)
    trees = [json.loads(tree) for tree in booster.get_dump(dump_format="json")]
    assert [inner(tree) for tree in trees] == [splits(tree) for tree in found.trees]
    fresh = np.random.default_rng(0).permutation(x.ravel()).reshape(x.shape)  # other rows, from the same numbers
    for rows in (x, fresh):
        np.testing.assert_allclose(found.predict(rows), booster.predict(xgboost.DMatrix(rows)), atol=2e-5)


@pytest.mark.quick("whole-numbers", "missing-binary", "rounded-classes")
@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("x", [WHOLE, X, np.round(X, 2)], ids=["whole", "missing", "rounded"])
def test_counted_cuts_make_the_trees_of_xgboost_on_the_union(x, kind):
    found, booster = grow(islands(x, kind), rounds=6), theirs(x, kind, 6)
    trees = [json.loads(tree) for tree in booster.get_dump(dump_format="json")]
    assert [inner(tree) for tree in trees] == [splits(tree) for tree in found.trees]
    fresh = np.random.default_rng(0).permutation(x.ravel()).reshape(x.shape)  # other rows, from the same numbers
    np.testing.assert_allclose(found.predict(fresh), booster.predict(xgboost.DMatrix(fresh)), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("exact", [False, True])
def test_so_they_do_with_many_rows_some_of_which_repeat_values_if_the_server_may_see_all_of_them(exact):
    rng = np.random.default_rng(3)
    x = np.round(rng.normal(size=(2000, 3)), 3).astype(np.float32)
    y = (x[:, 0] * x[:, 1] + x[:, 2] + rng.normal(size=2000) > 0).astype(np.int64)
    parts = {f"site-{i}": Dataset({"x": x[i::3], "y": y[i::3]}) for i in range(3)}
    found = grow(Islands.from_datasets(parts), max_depth=6, max_bin=64, exact_cuts=exact)
    settings = {"objective": "binary:logistic", "tree_method": "hist", "max_depth": 6, "max_bin": 64}
    rows = xgboost.DMatrix(x, y)
    gap = np.abs(found.predict(x) - xgboost.train(settings, rows, 4).predict(rows)).max()
    assert (gap < 2e-5) == exact


def test_of_agreed_features_nothing_is_counted(monkeypatch):
    asked = []
    counted = parties.count_parts
    monkeypatch.setattr(parties, "count_parts", lambda x, **given: asked.append(x.shape[1]) or counted(x, **given))
    grow(islands(ROUGH), cuts={"x0": [-1.0, 0.0], "x3": [0.0]}, rounds=1)
    assert set(asked) == {3}


def inner(node):
    """Feature, threshold and default direction of the inner nodes below a node of XGBoost's dump, a level at a time."""
    found, level = [], [node]
    while level:
        level = [one for one in level if "leaf" not in one]
        found += [(one["split"], threshold(one), one["missing"] == one["yes"]) for one in level]
        level = [child for one in level for child in one["children"]]
    return sorted(found)


def threshold(node):
    """The threshold; where only missing rows go right, XGBoost's lies beyond the largest value, and ours at the largest number."""
    beyond = node["split_condition"] > np.nanmax(X)
    return np.finfo(np.float32).max if beyond else np.float32(node["split_condition"])


def splits(tree):
    rows = np.flatnonzero(tree.feature >= 0)
    return sorted((f"f{tree.feature[n]}", tree.threshold[n], bool(tree.default_left[n])) for n in rows)


@pytest.mark.parametrize("kind", LABELS)
def test_who_has_which_rows_does_not_matter(kind):
    one, many = grow(islands(kind=kind, parties=1)), grow(islands(kind=kind))
    for mine, pooled in zip(many.trees, one.trees, strict=True):
        np.testing.assert_array_equal(mine.threshold, pooled.threshold)
        np.testing.assert_array_equal(mine.default_left, pooled.default_left)
        np.testing.assert_allclose(mine.value, pooled.value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scheme", ["histogram", "bagging", "forest"])
@pytest.mark.parametrize("kind", ["binary", "classes"])
def test_xgboost_reads_the_file_and_sends_missing_rows_the_same_way(kind, scheme):
    found = grow(islands(kind=kind), scheme=scheme, **({"trees": 5} if scheme == "forest" else {}))
    booster = xgboost.Booster()
    booster.load_model(bytearray(model_file(found)))
    rows = np.where(RNG.random((200, 5)) < 0.4, np.nan, RNG.normal(size=(200, 5))).astype(np.float32)
    named = xgboost.DMatrix(rows, feature_names=list(found.features))
    np.testing.assert_allclose(booster.predict(named), found.predict(rows), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["binary", "numbers"])
def test_bagging_with_one_site_is_ordinary_boosting_to_the_bit(kind):
    found = grow(islands(kind=kind, parties=1), scheme="bagging", rounds=6)
    ordinary = theirs(X, kind, 6, base_score=found.base_score)
    booster = xgboost.Booster()
    booster.load_model(bytearray(model_file(found)))
    named = xgboost.DMatrix(X, feature_names=list(found.features))
    np.testing.assert_array_equal(booster.predict(named), ordinary.predict(xgboost.DMatrix(X)))


def test_masked_sums_grow_the_same_trees():
    masked = SecureAggregation(codec=FixedPoint(value_bits=40, weight_bits=0, value_range=1024.0))
    plain, hidden = grow(islands(), rounds=2), grow(islands(), rounds=2, reducer=masked)
    np.testing.assert_allclose(hidden.margins(X), plain.margins(X), atol=1e-4)
    for mine, other in zip(hidden.trees, plain.trees, strict=True):
        np.testing.assert_array_equal(mine.default_left, other.default_left)


def test_a_node_without_missing_rows_sends_them_right_and_may_split_them_off_alone():
    x = np.array([[0.0, 1], [1, 1], [np.nan, 1], [np.nan, np.nan]] * 20, np.float32)
    y = np.array([0, 0, 1, 1] * 20)
    data = Dataset({"x": x, "y": y}, missing_features=True)
    (tree,) = grow(Islands.from_datasets([data.take(slice(0, 30)), data.take(slice(30, 80))]), rounds=1).trees
    assert tree.feature.tolist() == [0, -1, -1]
    assert not tree.default_left.any()
    assert tree.leaves(np.array([[5e30, 0], [-5e30, 0], [np.nan, 0]], np.float32)).tolist() == [1, 1, 2]


def test_cuts_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="cuts of 'x0' are not at most 255 ascending numbers"):
        Trees(cuts={"x0": [1.0, 1.0]})
    with pytest.raises(CompositionError, match="cuts with scheme='bagging'"):
        Trees(scheme="bagging", cuts={"x0": [1.0]})
    with pytest.raises(CompositionError, match="exact_cuts with scheme='forest'"):
        Trees(scheme="forest", exact_cuts=True)
    with pytest.raises(DataError, match="cuts of a feature 'age', which the data do not have"):
        grow(islands(), cuts={"age": [18.0]})
    some = grow(islands(ROUGH), cuts={"x0": [-1.0, 0.0, 1.0]})
    found = {float(t) for tree in some.trees for t in tree.threshold[tree.feature == 0]}
    assert found <= {-1.0, 0.0, 1.0, float(np.finfo(np.float32).max)}


def test_who_cannot_use_missing_features_refuses_them_by_name():
    training = atoll.Training(model=atoll.models.linear(5, 2), algorithm=atoll.FedAvg(lr=0.1), rounds=1)
    with pytest.raises(DataError, match="the clients' features may be missing, which a Training cannot use") as error:
        atoll.simulate(training, islands(), engine="inline", progress=False)
    assert "fill them first" in str(error.value)
    held = Dataset({"x": X[:20], "y": LABELS["binary"][:20]}, missing_features=True)
    whole = Islands.from_datasets([Dataset({"x": WHOLE, "y": LABELS["binary"]})], test=held)
    with pytest.raises(DataError, match="the test rows' features may be missing"):
        atoll.simulate(training, whole, engine="inline", progress=False)
    # Statistics count them, and an imputer fills them.
    counted = atoll.simulate(Statistics(), islands(), engine="inline", progress=False).outcome
    assert counted["x0"].missing == int(np.isnan(X[:, 0]).sum())
    filled = atoll.simulate(
        Fit(model=Columns(), columns=["x0"], impute="mean"), islands(), engine="inline", progress=False
    ).outcome
    assert filled.layout.fill["x0"] == pytest.approx(np.nanmean(X[:, 0].astype(float)), rel=1e-6)
