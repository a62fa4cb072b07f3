"""Trees where rows are awkward: a site without a class, features that cannot split, values that single precision confuses."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.core.errors import DataError
from atoll.data import Dataset, Islands
from atoll.data.missing import require_single_precision
from atoll.data.readers import from_csv_files
from atoll.study.sites import compare_trees
from atoll.trees import Trees

xgboost = pytest.importorskip("xgboost")
RNG = np.random.default_rng(3)
X = np.round(2 * RNG.normal(size=(300, 3))).clip(-4, 4).astype(np.float32)
Y = np.digitize(X[:, 0] + 0.3 * RNG.normal(size=300), [-1, 1])


def grow(parts, **settings):
    return atoll.simulate(
        Trees(**{"rounds": 6, "max_depth": 3, **settings}),
        Islands.from_datasets(parts), engine="inline", progress=False,
    ).outcome  # fmt: skip


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_class_without_rows_has_the_probability_that_xgboost_gives_it(lost):
    rows = lost != Y
    x, y = X[rows], Y[rows]
    parts = {f"site-{i}": Dataset({"x": x[i::2], "y": y[i::2]}, classes=3) for i in range(2)}
    settings = {"objective": "multi:softprob", "num_class": 3, "tree_method": "hist", "max_depth": 3}
    theirs = xgboost.train(settings, xgboost.DMatrix(x, y), 6).predict(xgboost.DMatrix(X))
    np.testing.assert_allclose(grow(parts).predict(X), theirs, atol=2e-4)


@pytest.mark.parametrize("method", ["histogram", "bagging", "forest"])
def test_files_of_three_classes_and_one_without_a_class_are_compared(tmp_path, method):
    names = np.array(["low", "middle", "top"])
    rows = {"north": np.flatnonzero(Y[:150] != 1), "south": np.arange(150, 225), "held": np.arange(225, 300)}
    for name, mine in rows.items():
        lines = [",".join([*map(str, X[i]), names[Y[i]]]) for i in mine]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,c,y", *lines]) + "\n")
    files = [tmp_path / "north.csv", tmp_path / "south.csv"]
    found, _ = compare_trees(
        files, tmp_path / "held.csv", "y", {"scheme": method, "rounds": 6, "max_depth": 3}, secure=False, seed=0
    )
    assert found["federated"] > 0.5
    if method != "forest":
        settings = {"objective": "multi:softprob", "num_class": 3, "tree_method": "hist", "max_depth": 3}
        theirs = xgboost.train(settings, xgboost.DMatrix(X[rows["north"]], Y[rows["north"]]), 6)
        guess = theirs.predict(xgboost.DMatrix(X[rows["held"]])).argmax(axis=1)
        assert found["alone"]["north"] == pytest.approx((guess == Y[rows["held"]]).mean(), abs=1e-9)


@pytest.mark.parametrize("scheme", ["histogram", "bagging"])
@pytest.mark.parametrize("value", [1.0, np.nan])
def test_features_that_cannot_split_give_a_leaf_as_xgboost_does(scheme, value):
    x, y = np.full((40, 2), value, np.float32), np.arange(40) % 4 == 0
    data = Dataset({"x": x, "y": y.astype(int)}, missing_features=bool(np.isnan(value)))
    found = grow({"a": data, "b": data}, scheme=scheme)
    theirs = xgboost.train({"objective": "binary:logistic", "tree_method": "hist"}, xgboost.DMatrix(x, y), 6)
    np.testing.assert_allclose(found.predict(x), theirs.predict(xgboost.DMatrix(x)), atol=1e-6)
    assert all(len(tree) == 1 for tree in found.trees)


@pytest.mark.parametrize("scheme", ["histogram", "bagging", "forest", "lightgbm"])
@pytest.mark.parametrize("unit", [1, 1000, 10**9])
def test_timestamps_that_single_precision_confuses_are_refused(scheme, unit):
    time = (1_700_000_000 + np.arange(300)) * unit
    data = Dataset({"x": np.column_stack((time, np.arange(300) % 7)), "y": np.arange(300) // 150})
    with pytest.raises(DataError, match="equal in single precision") as caught:
        grow({"a": data}, scheme=scheme)
    assert "subtract a fixed number" in str(caught.value)


def test_a_file_with_timestamps_is_refused_by_its_column(tmp_path):
    lines = [f"{1_700_000_000 + i},{i % 7},{i // 150}" for i in range(300)]
    (tmp_path / "a.csv").write_text("\n".join(["when,b,y", *lines]) + "\n")
    with pytest.raises(DataError, match="column 'when'"):
        from_csv_files([tmp_path / "a.csv"], target="y")


def test_ordinary_numbers_of_double_precision_are_not_refused():
    x = np.column_stack((RNG.normal(size=3000), 1e5 + np.arange(3000) % 60 * 0.25))
    y = (x[:, 0] > 0).astype(int)
    assert (grow({"a": Dataset({"x": x, "y": y})}).predict(x) > 0.5).mean() == pytest.approx(y.mean(), abs=0.01)


def test_rounding_that_is_small_beside_the_spread_is_not_refused():
    values = 1 + np.random.default_rng(0).random(400_000)  # 2.3 % of them are equal to another in single precision
    assert len(np.unique(values.astype(np.float32))) < 0.99 * len(values)
    require_single_precision(values, "a", "here")
    with pytest.raises(DataError, match="column 'a'"):
        require_single_precision(values[:3000] + 1e4, "a", "here")


def test_labels_of_one_class_are_refused_by_name(tmp_path):
    for name in ("north", "south"):
        (tmp_path / f"{name}.csv").write_text("x,y\n" + "".join(f"{i % 7},low\n" for i in range(20)))
    with pytest.raises(DataError, match="all labels are of one class"):
        compare_trees(
            [tmp_path / "north.csv", tmp_path / "south.csv"],
            None,
            "y",
            {"scheme": "histogram", "rounds": 2},
            secure=False,
            seed=0,
        )
