"""Text and codes as categories: XGBoost's splits of them, and codes that a saved model knows."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.core.errors import CompositionError, ConfigError, DataError, MessageError
from atoll.data import Dataset
from atoll.secure.encrypted import Paillier
from atoll.vertical import FedXGBoost, SecureBoost, Vertical, VerticalPrediction, train_pooled
from atoll.vertical.model import VerticalModel
from atoll.vertical.tables import PartyTable
from atoll.vertical.trees.boosting import HostColumns, HostRole, PlainSums
from atoll.vertical.trees.columns import OwnedColumns, Splits

SHORT = Paillier(key_bits=512, insecure=True)
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


def draw_more(seed):
    """Parties with columns of many, few and one category, of which some have rows nowhere or held out alone, and holes; and the labels of a task."""
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(150, 900))
    columns, signal = {}, np.zeros(rows)
    for k, (party, most) in enumerate([("bank", 20), ("shop", 30), ("shop", 6)]):
        size = int(rng.integers(1, most))
        codes = rng.choice(size, rows, p=rng.dirichlet(np.full(size, 0.7)))
        names = np.array([f"k{i:02}" for i in rng.permutation(size)])[codes]
        signal += rng.normal(size=size)[codes]
        names[rng.random(rows) < rng.choice([0.0, 0.2])] = ""
        columns[party, f"c{k}"] = names
    for k, party in enumerate(["bank", "shop", "shop"]):
        values = rng.normal(size=rows).astype(np.float32)
        signal += values * rng.normal()
        values[rng.random(rows) < rng.choice([0.0, 0.2])] = np.nan
        columns[party, f"x{k}"] = values
    signal += rng.normal(size=rows)
    labels = [(signal > np.median(signal)).astype(int), signal.astype(np.float32), np.digitize(signal, np.quantile(signal, [0.3, 0.7]))]  # fmt: skip
    tables = {}
    for party in ("bank", "shop"):
        order = rng.permutation(rows)
        tables[party] = {"id": order, **{name: each[order] for (whose, name), each in columns.items() if whose == party}}  # fmt: skip
        if party == "bank":
            tables[party]["y"] = labels[seed % 3][order]
    return tables, {name: each for (_, name), each in sorted(columns.items(), key=lambda one: one[0][0])}, labels[seed % 3]  # fmt: skip


def grown_by_xgboost(columns, y, told, model, task):
    """XGBoost's predictions in the order of ``told``, by trees of its training rows."""
    xgboost, pandas = pytest.importorskip("xgboost"), pytest.importorskip("pandas")
    at, train = told["id"].astype(int), ~told["test"]
    frame = pandas.DataFrame(
        {
            name: pandas.Categorical([one or None for one in each[at].tolist()], categories=sorted(set(each.tolist()) - {""}))
            if each.dtype.kind == "U"
            else each[at]
            for name, each in columns.items()
        }
    )  # fmt: skip
    y = y[at]
    base = float(y[train].mean()) if task != "multiclass" else np.log(np.bincount(y[train]) / train.sum())
    settings = {
        "objective": {"binary": "binary:logistic", "regression": "reg:squarederror", "multiclass": "multi:softprob"}[task],
        "tree_method": "hist", "max_depth": model.depth, "eta": model.rate, "max_bin": model.bins, "max_cat_to_onehot": model.max_cat_to_onehot,
        **({"num_class": 3, "base_score": (base - base.mean()).tolist()} if task == "multiclass" else {"base_score": base}),
    }  # fmt: skip
    grown = xgboost.train(settings, xgboost.DMatrix(frame[train], y[train], enable_categorical=True), model.trees)
    found = grown.predict(xgboost.DMatrix(frame, enable_categorical=True))
    return found.reshape(len(at), -1) / (y.std() if task == "regression" else 1)


CASES = [(0, 4), (1, 1)]


@pytest.mark.parametrize(
    ("seed", "most"),
    [*CASES, *(pytest.param(seed, most, marks=pytest.mark.slow) for seed in range(24) for most in (4, 1, 100) if (seed, most) not in CASES)],
)  # fmt: skip
def test_trees_are_xgboosts_with_categories(seed, most):
    """Partitions by the order of G / H, and one category against the others where there are fewer than ``most``; the default of both is 4."""
    tables, columns, y = draw_more(seed)
    task = ["binary", "regression", "multiclass"][seed % 3]
    model = SecureBoost(trees=8, depth=4, security="none", **({} if most == 4 else {"max_cat_to_onehot": most}))
    job = Vertical(model=model, task=task)
    found = atoll.simulate(job, tables, engine="inline", progress=False)
    told = found.predictions
    np.testing.assert_array_equal(told["federated"], train_pooled(job, tables, found.outcome))
    mine = told["federated"] / (y.std() if task == "regression" else 1)
    np.testing.assert_allclose(mine, grown_by_xgboost(columns, y, told, model, task), atol=3e-6)
    parts = [half["half"]["part"] for half in found.replies.values()]
    assert any("right" in part or "right" in part.get("splits", {}) for part in parts)


@pytest.mark.parametrize("model", [
    SecureBoost(trees=2, depth=2, cipher=SHORT),
    FedXGBoost(trees=2, depth=2),
    pytest.param(SecureBoost(trees=2, cipher=SHORT, batch=64, optimistic=True, packed=False), marks=pytest.mark.slow),
], ids=["paillier", "products", "optimistic"])  # fmt: skip
def test_sealed_sums_find_the_same_partitions(model):
    """Those of all columns in one place, which are XGBoost's."""
    tables, *_ = draw_more(0)
    job = Vertical(model=model, task="binary")
    found = atoll.simulate(job, tables, engine="inline", progress=False)
    np.testing.assert_array_equal(found.predictions["federated"], train_pooled(job, tables, found.outcome))
    host, guest = found.replies["shop"]["half"]["part"], found.replies["bank"]["half"]["part"]["splits"]
    assert len({len(one["right"]) > 1 for one in (host, guest) if "right" in one}) == 1
    assert any("categories of one column" in line for line in found.learns["bank"])


def test_rare_categories_stay_together_and_go_left():
    tables, *_ = draw_more(6)
    job = Vertical(model=SecureBoost(trees=4, security="none", min_bin_rows=40), task="binary")
    found = atoll.simulate(job, tables, engine="inline", progress=False)
    np.testing.assert_array_equal(found.predictions["federated"], train_pooled(job, tables, found.outcome))
    told, shop = found.predictions, tables["shop"]
    table = PartyTable.of(shop, "shop", coded=())
    part = found.replies["shop"]["half"]["part"]
    rows = np.isin(shop["id"], told["id"][~told["test"]].astype(int))
    counts = (table.x[rows] == 1).sum(axis=0)
    assert len(part["right"])
    assert counts[part["right"]].min() >= 40


@pytest.mark.parametrize(
    ("right", "match"),
    [([0, 3], "categories .* which the column of input 0 does not have"), ([9], "does not have"), ([-1], "does not have")],
)  # fmt: skip
def test_a_guest_that_names_other_categories_is_refused(right, match):
    x = np.eye(3, dtype=np.float32)[np.arange(30) % 3]
    columns = OwnedColumns(np.concatenate([x, x[:, :1]], axis=1), 8, groups=[0, 0, 0, -1])
    with pytest.raises(MessageError, match=match):
        columns.goes_left(0, 0, 0, True, right)
    np.testing.assert_array_equal(columns.goes_left(0, 0, 0, True, [0, 2]), np.arange(30) % 3 == 1)
    assert OwnedColumns(x[1::3].repeat(2, axis=0), 8, groups=[0, 0, 0]).counts == [1, 1, 0], (
        "none behind the last with rows"
    )
    role = HostRole(columns, PlainSums(), Splits())
    asked = {"do": "split", "nodes": np.array([0]), "children": np.array([1]), "feature": np.array([0]), "cut": np.array([0]), "default_left": np.array([True])}  # fmt: skip
    with pytest.raises(MessageError, match="categories that go right at no split"):
        role.answer({**asked, "right": np.array([1]), "right_of": np.array([1])})


@pytest.mark.parametrize("groups", [np.array([0]), np.array([0.5, 0.5]), np.array([0, 0])])
def test_a_host_with_other_columns_of_categories_is_refused(groups):
    with pytest.raises(MessageError, match="no numbers of the columns of categories"):
        HostColumns.of({"counts": np.array([1, 2]), "fullest": np.array([0, 0]), "groups": groups})


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
    with pytest.raises(ConfigError, match="max_cat_to_onehot=0"):
        SecureBoost(max_cat_to_onehot=0)
    with pytest.raises(DataError, match=r"'street' has 65 categories, more than 64"):
        PartyTable.of({"id": range(130), "street": [f"s{i % 65}" for i in range(130)]}, "shop", coded=())
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
