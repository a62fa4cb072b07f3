"""Columns that say nothing, or nothing new: trees are XGBoost's, and hidden trees the plain ones."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.core.errors import ConfigError, DataError
from atoll.secure.encrypted import Paillier
from atoll.vertical import FedXGBoost, Pivot, SecureBoost, Vertical, VerticalLinear, train_pooled

ODD = {
    "constant": lambda a: np.full(len(a), 3.0),
    "empty": lambda a: np.full(len(a), np.nan),
    "a copy of the guest's": lambda a: a,
    "a constant with holes": lambda a: np.where(np.arange(len(a)) % 4, 3.0, np.nan),
}
SHORT = Paillier(key_bits=512, insecure=True)


def parties(odd, rows=300, further=True):
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, rows))
    y = (a + b + rng.normal(size=rows) > 0.3).astype(np.int64)
    more = {"b": b} if further else {}
    return {
        "bank": {"id": np.arange(rows), "a": a, "y": y},
        "shop": {"id": np.arange(rows), "odd": ODD[odd](a), **more},
    }


@pytest.mark.parametrize("odd", ODD)
def test_margins_are_xgboosts(odd):
    xgboost = pytest.importorskip("xgboost")
    pytest.importorskip("gmpy2")
    data = parties(odd)
    job = Vertical(model=SecureBoost(trees=3, cipher=SHORT, bins=8), test=0)
    found = atoll.simulate(job, data, engine="inline", progress=False)
    at = found.predictions["id"].astype(np.int64)
    x = np.stack([data["bank"]["a"], data["shop"]["odd"], data["shop"]["b"]], axis=1)[at]
    y = data["bank"]["y"][at]
    settings = {"objective": "binary:logistic", "tree_method": "hist", "max_depth": 3, "eta": 0.3, "max_bin": 8, "base_score": float(y.mean())}  # fmt: skip
    theirs = xgboost.train(settings, xgboost.DMatrix(x, y), 3).predict(xgboost.DMatrix(x), output_margin=True)
    p = found.predictions["federated"][:, 0].astype(np.float64)
    np.testing.assert_allclose(np.log(p / (1 - p)), theirs, atol=1e-5)


@pytest.mark.parametrize("odd", [*list(ODD)[1:3], *(pytest.param(name, marks=pytest.mark.slow) for name in (*list(ODD)[:1], *list(ODD)[3:]))])  # fmt: skip
def test_hidden_trees_are_the_plain_ones(odd):
    pytest.importorskip("gmpy2")
    pytest.importorskip("rbcl")
    data = parties(odd, rows=120, further=False)
    job = Vertical(model=Pivot(trees=1, depth=2, bins=4, security="enhanced"))
    found = atoll.simulate(job, data, engine="inline", progress=False)
    np.testing.assert_array_equal(found.predictions["federated"], train_pooled(job, data, found.outcome))


@pytest.mark.parametrize("odd", ODD)
def test_products_of_odd_columns_are_the_plain_sums(odd):
    pytest.importorskip("rbcl")
    data, few = parties(odd), {"trees": 2, "bins": 8}
    hidden, plain = (
        atoll.simulate(Vertical(model=model), data, engine="inline", progress=False)
        for model in (FedXGBoost(**few), SecureBoost(**few, security="none"))
    )
    np.testing.assert_array_equal(hidden.predictions["federated"], plain.predictions["federated"])


HIDDEN = Pivot(trees=1, depth=2, bins=4, security="enhanced")


@pytest.mark.parametrize(
    ("model", "bare"),
    [
        (HIDDEN, "bank"),
        (VerticalLinear(cipher=SHORT), "shop"),
        pytest.param(HIDDEN, "shop", marks=pytest.mark.slow),
        pytest.param(Pivot(trees=1, depth=2, bins=4), "bank", marks=pytest.mark.slow),
    ],
)
def test_a_party_may_have_no_column(model, bare):
    pytest.importorskip("gmpy2")
    pytest.importorskip("rbcl")
    data = parties("empty", rows=80)
    data[bare] = {name: values for name, values in data[bare].items() if name in ("id", "y")}
    job = Vertical(model=model)
    found = atoll.simulate(job, data, engine="inline", progress=False)
    np.testing.assert_allclose(found.predictions["federated"], train_pooled(job, data, found.outcome), atol=1e-8)
    assert (len(np.unique(found.predictions["alone"])) == 1) == (bare == "bank")


def test_what_no_tree_can_use_is_refused():
    data = parties("constant", further=False)
    bare = {"bank": {name: data["bank"][name] for name in ("id", "y")}, "shop": {"id": data["shop"]["id"]}}
    for model in (SecureBoost(trees=1, security="none"), FedXGBoost(trees=1), Pivot(trees=1)):
        with pytest.raises(DataError, match="no party has a column to split"):
            atoll.simulate(Vertical(model=model), bare, engine="inline", progress=False)
    infinite = {**data, "shop": {"id": data["shop"]["id"], "odd": np.full(300, np.inf)}}
    with pytest.raises(DataError, match="column 'odd' is infinite in row 0"):
        atoll.simulate(Vertical(model=Pivot(trees=1)), infinite, engine="inline", progress=False)
    for model in (SecureBoost, Pivot):
        with pytest.raises(ConfigError, match="key_bits=1024"):
            model(cipher=Paillier(key_bits=1024))
