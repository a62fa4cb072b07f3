"""Text and codes as categories: XGBoost's trees on one input a category, and codes that a saved model knows."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.core.errors import CompositionError, DataError
from atoll.data import Dataset
from atoll.vertical import SecureBoost, Vertical, VerticalPrediction, train_pooled
from atoll.vertical.model import VerticalModel
from atoll.vertical.tables import PartyTable

CITIES, GRADES = ["Oslo", "Bergen", "Ålesund", "bodø"], [3.0, 1.0, 12.0]


def draw(seed, rows=700, holes=True):
    """Two parties with a column of text, a column of codes, and holes in both; and all columns in the order of `PartyTable`."""
    rng = np.random.default_rng(seed)
    ids = rng.permutation(rows)
    city, grade, age, sum_ = (
        rng.integers(0, 4, rows),
        rng.integers(0, 3, rows),
        rng.normal(size=(rows)),
        rng.normal(size=rows),
    )
    y = ((city == 1) * 1.5 + (grade == 2) * age + sum_ + rng.normal(size=rows) > 0.4).astype(np.int64)
    cities, grades = np.array(CITIES)[city], np.array(GRADES)[grade]
    if holes:
        cities[rng.random(rows) < 0.2], grades[rng.random(rows) < 0.2] = "", np.nan
    bank = {"id": ids, "grade": grades, "age": age, "y": y}
    order = rng.permutation(rows)
    shop = {"id": ids[order], "city": cities[order], "sum": sum_[order]}
    return bank, shop, cities, grades, age, sum_


def one_hot(cities, grades, age, sum_):
    """As a person would do it before XGBoost."""
    hot = [np.where(np.isnan(grades), np.nan, grades == code) for code in (1.0, 12.0, 3.0)]  # by name
    text = [np.where(cities == "", np.nan, cities == name) for name in sorted(CITIES)]
    return np.stack([*hot, age, *text, sum_], axis=1)


@pytest.mark.parametrize("seed", [1, 2])
def test_trees_are_xgboosts_on_one_input_a_category(seed):
    xgboost = pytest.importorskip("xgboost")
    bank, shop, *columns = draw(seed)
    model = SecureBoost(trees=8, security="none")
    job = Vertical(model=model, categories="grade", test=0)
    found = atoll.simulate(job, {"bank": bank, "shop": shop}, engine="inline", progress=False)
    place = {key: row for row, key in enumerate(bank["id"].astype(str).tolist())}
    at = [place[key] for key in found.predictions["id"].tolist()]
    x, y = one_hot(*columns)[at], bank["y"][at]
    np.testing.assert_array_equal(
        found.predictions["federated"], train_pooled(job, {"bank": bank, "shop": shop}, found.outcome)
    )
    settings = {"objective": "binary:logistic", "tree_method": "hist", "max_depth": 3, "eta": 0.3, "max_bin": 32, "base_score": float(y.mean())}  # fmt: skip
    theirs = xgboost.train(settings, xgboost.DMatrix(x, y), 8).predict(xgboost.DMatrix(x))
    np.testing.assert_allclose(found.predictions["federated"][:, 0], theirs, atol=3e-6)


@pytest.mark.parametrize("seed", [3, 4])
def test_trees_are_xgboosts_with_categories_of_its_own(seed):
    """XGBoost splits one category off the others where there are fewer than ``max_cat_to_onehot``. Rows without a category it never splits off alone, as it does with one input a category."""
    xgboost, pandas = pytest.importorskip("xgboost"), pytest.importorskip("pandas")
    bank, shop, cities, grades, age, sum_ = draw(seed, holes=False)
    job = Vertical(model=SecureBoost(trees=8, security="none"), categories="grade", test=0)
    found = atoll.simulate(job, {"bank": bank, "shop": shop}, engine="inline", progress=False)
    place = {key: row for row, key in enumerate(bank["id"].astype(str).tolist())}
    at = [place[key] for key in found.predictions["id"].tolist()]
    codes = [f"{one:.17g}" for one in GRADES]
    frame = pandas.DataFrame(
        {
            "grade": pandas.Categorical([None if np.isnan(one) else f"{one:.17g}" for one in grades[at]], categories=sorted(codes)),
            "age": age[at],
            "city": pandas.Categorical([one or None for one in cities[at]], categories=sorted(CITIES)),
            "sum": sum_[at],
        }
    )  # fmt: skip
    y = bank["y"][at]
    settings = {
        "objective": "binary:logistic", "tree_method": "hist", "max_depth": 3, "eta": 0.3, "max_bin": 32,
        "base_score": float(y.mean()), "max_cat_to_onehot": 100,
    }  # fmt: skip
    rows = xgboost.DMatrix(frame, y, enable_categorical=True)
    theirs = xgboost.train(settings, rows, 8).predict(rows)
    np.testing.assert_allclose(found.predictions["federated"][:, 0], theirs, atol=3e-6)


def test_a_saved_model_knows_its_codes_and_new_ones_are_none_of_them(tmp_path):
    bank, shop, *_ = draw(5, 300)
    job = Vertical(model=SecureBoost(trees=3, security="none"), categories=("grade",))
    found = atoll.simulate(job, {"bank": bank, "shop": shop}, engine="inline", results=tmp_path, progress=False)
    known = dict(zip(found.predictions["id"].tolist(), found.predictions["federated"][:, 0], strict=True))
    few = {name: values[:9] for name, values in shop.items()}  # with other categories among them than in the training
    asked = {"id": few["id"], "grade": np.array([dict(zip(bank["id"], bank["grade"], strict=True))[i] for i in few["id"]]), "age": [dict(zip(bank["id"], bank["age"], strict=True))[i] for i in few["id"]]}  # fmt: skip
    told = atoll.simulate(
        VerticalPrediction(), {"bank": asked, "shop": few}, engine="inline", results=tmp_path, progress=False
    )
    np.testing.assert_array_equal(told.predictions, [known[str(key)] for key in few["id"]])
    assert found.replies["shop"]["half"]["categories"] == {"city": sorted(CITIES)}
    assert found.replies["bank"]["half"]["categories"] == {"grade": ["1", "12", "3"]}
    table = PartyTable.of(
        {"id": [1, 2, 3], "city": ["Rome", " Oslo ", None]}, "shop", only=["city"], known={"city": sorted(CITIES)}
    )
    np.testing.assert_array_equal(table.x, [[0, 0, 0, 0], [0, 1, 0, 0], [np.nan] * 4])


def test_what_is_refused():
    with pytest.raises(DataError, match=r"'street' has 65 categories, more than 64"):
        PartyTable.of({"id": range(65), "street": [f"s{i}" for i in range(65)]}, "shop", coded=())
    with pytest.raises(DataError, match="column 'city' holds text"):
        PartyTable.of({"id": [1], "city": ["Oslo"]}, "shop")
    coded = Dataset({"x": np.zeros((60, 1)), "id": np.arange(60)}, features=["ward"], categories={"ward": ["a", "b"]})
    with pytest.raises(DataError, match="column 'ward' holds the codes of text"):
        PartyTable.of(coded, "shop")

    class Numbers(VerticalModel):
        security = "none"

    with pytest.raises(CompositionError, match=r"categories=\['city'\] with Numbers"):
        Vertical(model=Numbers(), categories="city")


def test_a_dataset_with_codes_of_text_is_read_by_its_names(tmp_path):
    file = tmp_path / "shop.csv"
    file.write_text("id,city,sum,y\n1,Oslo,3,0\n2,,4,1\n3,Bergen,5,1\n", encoding="utf-8")
    found = PartyTable.of(atoll.data.read_csv(file, target="y", missing_features=True), "shop", coded=())
    assert found.categories == {"city": ("Bergen", "Oslo")}
    np.testing.assert_array_equal(found.x[:, found.features.index("city") :][:, :2], [[0, 1], [np.nan, np.nan], [1, 0]])
