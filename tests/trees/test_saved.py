"""Model files of trees hold their columns, and are read again."""

from __future__ import annotations

import json

import numpy as np
import pytest

import atoll
from atoll.core.errors import CompositionError, DataError
from atoll.data import Dataset, Islands
from atoll.data.readers.table import from_table
from atoll.trees import Ensemble, Trees, model_file
from atoll.trees.model_files import ensemble_of

RNG = np.random.default_rng(0)
TABLE = {"age": RNG.normal(60, 9, 240), "ward": RNG.choice(["east", "icu", "west"], 240), "bmi": RNG.normal(25, 3, 240)}
TABLE["bmi"][:40] = np.nan
SCORE = (TABLE["age"] > 60) * 1.0 + (TABLE["ward"] == "icu")
LABELS = {
    "two": np.where(SCORE > 0, "yes", "no"),
    "signs": np.where(SCORE > 0, 1, -1),
    "three": np.array(["a", "b", "c"])[SCORE.astype(int)],
    "number": SCORE + 0.5,
}


def grow(kind: str, **settings) -> Ensemble:
    data = from_table({**TABLE, "y": LABELS[kind]}, target="y", missing_features=True)
    parts = {"north": data.take(slice(0, 120)), "south": data.take(slice(120, 240))}
    job = Trees(rounds=4, max_depth=3, **settings)
    return atoll.simulate(job, Islands.from_datasets(parts), engine="inline", progress=False).outcome


def shuffled() -> dict[str, np.ndarray]:
    return {name: TABLE[name] for name in ("bmi", "ward", "age")}


@pytest.mark.parametrize("scheme", ["histogram", "lightgbm"])
@pytest.mark.parametrize("kind", list(LABELS))
def test_a_file_predicts_raw_rows_as_the_trees_do(kind, scheme) -> None:
    pytest.importorskip("lightgbm" if scheme == "lightgbm" else "xgboost")
    found = grow(kind, scheme=scheme)
    again = ensemble_of(model_file(found), "model")
    assert again.columns == found.columns
    assert again.columns.categories == {"ward": ("east", "icu", "west")}
    np.testing.assert_allclose(again.predict(shuffled()), found.predict(shuffled()), rtol=0, atol=1e-6)
    estimator = again.to_sklearn()
    if kind == "number":
        np.testing.assert_allclose(estimator.predict(shuffled()), found.predict(shuffled()), rtol=1e-6)
        with pytest.raises(CompositionError, match="no probabilities"):
            again.predict_proba(shuffled())
        return
    shown = estimator.predict_proba(shuffled())
    ours = found.predict(shuffled())
    np.testing.assert_allclose(shown if kind == "three" else shown[:, 1], ours, rtol=0, atol=1e-6)
    assert set(estimator.classes_) == set(LABELS[kind].tolist())
    assert (estimator.predict(shuffled()) == LABELS[kind]).mean() > 0.9


def test_the_libraries_predict_the_same_of_coded_rows() -> None:
    xgboost, lightgbm = pytest.importorskip("xgboost"), pytest.importorskip("lightgbm")
    for kind in ("two", "three"):
        found = grow(kind)
        x = found.columns.matrix(shuffled())
        booster = xgboost.Booster()
        booster.load_model(bytearray(model_file(found)))
        theirs = booster.predict(xgboost.DMatrix(x, feature_names=["age", "ward", "bmi"]))
        np.testing.assert_allclose(found.predict(shuffled()), theirs, rtol=0, atol=1e-6)
        # What XGBoost writes again still knows its columns.
        again = ensemble_of(bytes(booster.save_raw("json")), "model.json")
        assert again.columns == found.columns
        np.testing.assert_allclose(again.predict(shuffled()), theirs, rtol=0, atol=1e-6)
    found = grow("two", scheme="lightgbm")
    ours = lightgbm.Booster(model_str=model_file(found).decode()).predict(found.columns.matrix(shuffled()))
    np.testing.assert_allclose(found.predict(shuffled()), ours, rtol=0, atol=1e-6)


def test_a_table_is_matched_by_name_and_an_unknown_text_is_refused() -> None:
    found = grow("two")
    with pytest.raises(DataError, match=r"column 'ward' has .*'icus'.*Did you mean 'icu'"):
        found.predict({**shuffled(), "ward": np.full(240, "icus")})
    with pytest.raises(DataError, match=r"no column 'bmi'.*Did you mean 'bmis'"):
        found.margins({"bmis": TABLE["bmi"], "ward": TABLE["ward"], "age": TABLE["age"]})
    assert found.predict_proba(shuffled()).shape == (240, 2)


def test_files_of_others_are_read_or_refused() -> None:
    found = grow("two")
    bare = json.loads(model_file(found))
    bare["learner"]["attributes"] = {}
    read = ensemble_of(json.dumps(bare).encode(), "model.json")
    assert read.columns is None
    x = found.columns.matrix(shuffled())
    np.testing.assert_allclose(read.predict(x), found.predict(x), rtol=0, atol=1e-6)
    assert read.to_sklearn().classes_.tolist() == [0, 1]
    bare["learner"]["objective"]["name"] = "rank:ndcg"
    with pytest.raises(DataError, match="objective 'rank:ndcg'"):
        ensemble_of(json.dumps(bare).encode(), "model.json")
    for content in (b"{}", b"tree\nversion=v4\n", b"{", b"\xff"):
        with pytest.raises(DataError, match="no trees can be read"):
            ensemble_of(content, "model.json")


def test_trees_of_features_without_names_take_them_by_number() -> None:
    data = Dataset({"x": RNG.normal(size=(60, 2)), "y": np.arange(60) % 2})
    found = atoll.simulate(Trees(rounds=1), [data], engine="inline", progress=False).outcome
    x = np.array([[0.5, -1.0], [1.0, 2.0]])
    named = {"x1": x[:, 1], "x0": x[:, 0]}
    np.testing.assert_array_equal(found.predict(named), found.predict(x))
