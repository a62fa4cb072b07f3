"""Imputers, encoders and scalers are scikit-learn's on all rows, and so is the pipeline that people get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge as PooledRidge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, RobustScaler, StandardScaler

import atoll
from atoll.core.errors import AtollError, CompositionError, ConfigError, DataError
from atoll.fitting import GLM, SVM, Columns, Cox, Fit, FittedModel, KMeans, NaiveBayes, Ridge
from atoll.reducers import SecureAggregation
from atoll.statistics.disclosure import coarsen

SCALERS = {"standard": StandardScaler, "minmax": MinMaxScaler, "robust": RobustScaler}
SECURE: dict[str, Any] = {
    "reducer": SecureAggregation(), "categories": {"ward": ["heart", "inner", "surgery"]}, "columns": ["age", "pressure", "ward"]
}  # fmt: skip


def patients() -> pd.DataFrame:
    draw, n = np.random.default_rng(1), 220
    made = pd.DataFrame(
        {"age": draw.normal(50, 10, n).round(), "pressure": draw.normal(1e4, 20, n), "ward": draw.choice(["surgery", "inner", "heart"], n)}
    )  # fmt: skip
    made["stay"] = made.age * 0.1 + made.pressure * 0.02 + (made.ward == "heart") + draw.normal(size=n)
    for name in ("age", "pressure", "ward"):
        made.loc[draw.random(n) < 0.1, name] = "" if name == "ward" else np.nan
    return made


WHOLE = patients()
PARTIES = {"north": WHOLE[:100], "south": WHOLE[100:170], "west": WHOLE[170:]}
FRAME = WHOLE.replace({"ward": {"": np.nan}})


def fit(model: Any = None, data: Any = None, **settings: Any) -> FittedModel:
    job = Fit(model=model or Ridge(alpha=1.0), **{"label": "stay", "impute": "mean", **settings})
    found = atoll.simulate(job, PARTIES if data is None else data, engine="inline", progress=False).outcome
    assert isinstance(found, FittedModel)
    return found


@pytest.mark.quick("mean-standard-plain", "median-robust-secure", "most_frequent-minmax-plain")
@pytest.mark.parametrize("how", [{}, SECURE], ids=["plain", "secure"])
@pytest.mark.parametrize("scale", list(SCALERS))
@pytest.mark.parametrize("impute", ["mean", "median", "most_frequent"])
def test_a_prepared_regression_is_that_of_all_rows(impute: str, scale: str, how: dict[str, Any]) -> None:
    if how and impute == "most_frequent":
        with pytest.raises(CompositionError, match="impute='most_frequent' counts the values of columns of numbers"):
            fit(impute=impute, **how)
        return
    found = fit(impute=impute, scale=scale, **how)
    numbers = make_pipeline(SimpleImputer(strategy=impute), SCALERS[scale]())
    wards = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore"))
    columns = ColumnTransformer([("numbers", numbers, ["age", "pressure"]), ("wards", wards, ["ward"])])
    pooled = make_pipeline(columns, PooledRidge(alpha=1.0)).fit(FRAME, FRAME.stay)
    np.testing.assert_allclose(found["coef"], pooled[-1].coef_, rtol=1e-9)
    np.testing.assert_allclose(found.predict(WHOLE), pooled.predict(FRAME), rtol=1e-10)
    made = found.estimator()
    np.testing.assert_allclose(made.predict(FRAME), pooled.predict(FRAME), rtol=1e-10)
    assert made[:-1].get_feature_names_out().tolist()[-1] == "categories__ward_surgery"
    assert found.features == ("age", "pressure", "ward=heart", "ward=inner", "ward=surgery")


def test_under_a_minimum_count_quantiles_are_near() -> None:
    found = fit(impute="median", scale="robust", min_count=10)
    rank = (WHOLE.age < found.layout.fill["age"]).sum() / WHOLE.age.notna().sum()
    assert abs(rank - 0.5) < 3 * 10 * 2 / len(WHOLE)
    told = found.layout.fill["age"]  # no row's own value: a point of the public grid, or what ten rows of a party share
    assert told * 2**20 == int(told * 2**20)
    assert told not in WHOLE.age.to_numpy() or (WHOLE.age == told).sum() >= 10
    grid = np.unique(np.concatenate([coarsen(np.asarray(table["pressure"]), 10) for table in PARTIES.values()]))
    between = {float(one) for k in (0, 1) for one in (grid[: len(grid) - k] + grid[k:]) / 2}
    assert found.layout.fill["pressure"] in between
    with pytest.raises(ConfigError, match="scale='minmax' with min_count"):
        fit(scale="minmax", min_count=10)


def test_values_of_few_rows_are_not_told() -> None:
    odd = {**PARTIES, "west": PARTIES["west"].assign(ward=["Mr Smith's room", *PARTIES["west"].ward[1:]])}
    assert "Mr Smith's room" in fit(data=odd).layout.levels["ward"]
    found = fit(data=odd, min_count=5)
    assert found.layout.levels["ward"] == ["heart", "inner", "surgery"]
    row = odd["west"][:1]
    assert found.predict(row)[0] == pytest.approx(
        found["intercept"] + found["coef"][:2] @ np.where(np.isnan(v := row[["age", "pressure"]].to_numpy()[0]), list(found.layout.fill.values())[1:], v)
    )  # fmt: skip


def test_numbers_that_are_categories() -> None:
    rooms = {name: part.assign(ward=np.arange(len(part)) % 3 + 7) for name, part in PARTIES.items()}
    found = fit(data=rooms, categories={"ward": ["7", "8", "9"]})
    assert found.features[2:] == ("ward=7", "ward=8", "ward=9")
    whole = pd.concat(rooms.values())
    np.testing.assert_allclose(found.estimator().predict(whole), found.predict(whole), rtol=1e-12)
    ordinal = fit(data=rooms, categories={"ward": ["7", "8", "9"]}, encode="ordinal")
    assert ordinal.features == ("age", "pressure", "ward")
    np.testing.assert_allclose(ordinal.estimator().predict(whole), ordinal.predict(whole), rtol=1e-12)


@pytest.mark.parametrize("encode", ["dummy", "ordinal"])
def test_a_missing_category_does_not_pass_for_the_first_value(encode: str) -> None:
    rows = pd.DataFrame({"age": [50.0, 60, 70, 80], "ward": ["eye", "heart", "eye", "heart"], "stay": [1.0, 2, 3, 5]})
    holes = rows.assign(ward=["eye", None, "eye", "heart"])
    how = {"model": Ridge(alpha=1.0), "label": "stay", "encode": encode, "impute": "", "scale": ""}
    with pytest.raises(DataError, match=r"1 value of column 'ward' is missing.*give impute='median'"):
        fit(data={"a": rows, "b": holes}, **how)
    found = fit(data={"a": rows, "b": rows}, **how)
    with pytest.raises(DataError, match=r"1 value of column 'ward' is missing.*fitted without impute"):
        found.predict(holes)


@pytest.mark.parametrize("encode", ["dummy", "ordinal"])
def test_a_category_that_nobody_agreed_on_does_not_pass_for_the_first_value(encode: str) -> None:
    rows = pd.DataFrame({"age": [50.0, 60, 70, 80], "ward": ["eye", "heart", "eye", "heart"], "stay": [1.0, 2, 3, 5]})
    other = rows.assign(ward=["eye", "burns", "eye", "heart"])
    how = {"model": Ridge(alpha=1.0), "label": "stay", "encode": encode, "categories": {"ward": ["eye", "heart"]}}
    with pytest.raises(DataError, match=r"'ward' holds values beyond the agreed ones, eye, heart.*encode='onehot'"):
        fit(data={"a": rows, "b": other}, **how)
    found = fit(data={"a": rows, "b": rows}, **how)
    with pytest.raises(DataError, match=r"'ward' holds values beyond the agreed ones"):
        found.predict(other)


def test_events_may_be_the_words_true_and_false() -> None:
    """Files say so, and pandas writes them; a column with any other word is refused as before."""
    draw = np.random.default_rng(0)
    rows = pd.DataFrame(
        {"age": draw.normal(size=80), "time": draw.exponential(size=80), "event": draw.random(80) < 0.7}
    )
    model = Cox(time="time", event="event")
    numbers, words = (rows.assign(event=rows.event.map(to)) for to in (int, str))
    wanted, found = (fit(model, label="", data={"a": part[:40], "b": part[40:]}) for part in (numbers, words))
    assert found["coef"].tolist() == wanted["coef"].tolist()
    other = words.assign(event=words.event.replace("False", "unsure"))
    with pytest.raises(DataError, match="column 'event' has text, such as «True»"):
        fit(model, label="", data={"a": other[:40], "b": other[40:]})


def test_columns_alone_make_data_sets_for_any_learner() -> None:
    found = fit(Columns(label_is="number"), impute="median", scale="standard")
    made = {name: found.dataset(table, name) for name, table in PARTIES.items()}
    assert made["west"].about.features == ("age", "pressure", "ward=heart", "ward=inner", "ward=surgery")
    x = np.concatenate([np.asarray(part["x"]) for part in made.values()])
    np.testing.assert_allclose(x, found.predict(WHOLE))
    np.testing.assert_allclose(x[:, :2].mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(found.estimator().transform(FRAME), x)
    assert made["west"].about.task == "regression"
    sick = fit(Columns(label_is="class"), label="ward", columns=["age"]).dataset(WHOLE)
    assert (sick.about.labels, sick.about.classes) == (("heart", "inner", "surgery"), 3)
    assert len(sick) == (WHOLE.ward != "").sum()
    assert found.told["contacts"] == 0
    with pytest.raises(CompositionError, match="prepared columns have no score"):
        found.score(WHOLE)
    with pytest.raises(ConfigError, match="label_is='text'"):
        Columns(label_is="text")


@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"impute": ""}, DataError, r"\d+ values of column 'age' are missing"),
        ({"impute": "knn"}, ConfigError, "impute='knn'"),
        ({"scale": "power"}, ConfigError, "scale='power'"),
        ({"encode": "target"}, ConfigError, "encode='target'"),
        ({"columns": "age"}, ConfigError, "columns='age'"),
        ({"min_count": 0}, ConfigError, "min_count=0"),
        ({"label": ""}, CompositionError, "label='': Ridge needs a label"),
        ({"model": KMeans(clusters=2)}, CompositionError, "label='stay': KMeans takes no label"),
        ({"label": "stays"}, DataError, "no column 'stays'. Did you mean 'stay'"),
        ({"columns": ["agee"]}, DataError, "no column 'agee'"),
        ({"label": "ward"}, DataError, "column 'ward' does not hold one number a row"),
        ({"min_count": 500}, DataError, r"column 'ward' has no value at any party, or no party has min_count=500 rows"),
        ({"min_count": 500, "columns": ["age"]}, DataError, "column 'age' has no value that at least min_count=500"),
        (
            {"model": NaiveBayes(), "label": "ward", "reducer": SecureAggregation()},
            CompositionError,
            "the values of 'ward' are not known",
        ),
        ({"model": "kmeans"}, CompositionError, "model: 'kmeans' is not an instance of FitMethod"),
    ],
)
def test_what_cannot_be_is_said(settings: dict[str, Any], error: type[AtollError], match: str) -> None:
    with pytest.raises(error, match=match):
        fit(**settings)


def test_parties_with_other_columns_are_named() -> None:
    with pytest.raises(DataError, match=r"the columns of west are .*, and of north"):
        fit(data={**PARTIES, "west": WHOLE[170:].drop(columns="age")})
    empty = {"north": WHOLE[:2].assign(age=np.nan)}
    with pytest.raises(DataError, match="column 'age' has no value"):
        fit(data=empty)


@pytest.mark.parametrize("impute", ["", "mean"])
def test_a_saved_fit_predicts_raw_rows_as_scikit_learn_does(impute: str, tmp_path: Path) -> None:
    whole = WHOLE if impute else WHOLE[~WHOLE.isna().any(axis=1) & (WHOLE.ward != "")]
    data = {"north": whole[:90], "south": whole[90:]}
    label = (whole.age > 50).map({True: "old", False: "young"})
    data = {name: part.assign(kind=label[part.index]).drop(columns="stay") for name, part in data.items()}
    found = fit(GLM(), data, label="kind", impute=impute, scale="standard")
    found.save(tmp_path / "fit.json")
    again = FittedModel.load(tmp_path / "fit.json")
    turned = whole[["ward", "stay", "pressure", "age"]]
    frame = whole.replace({"ward": {"": np.nan}})
    np.testing.assert_allclose(again.predict_proba(turned), found.estimator().predict_proba(frame), rtol=0, atol=1e-9)
    model = again.to_sklearn()
    np.testing.assert_allclose(model.predict_proba(turned), again.predict_proba(turned), rtol=0, atol=0)
    assert model.predict(turned).tolist() == found.estimator().predict(frame).tolist()
    assert (model.classes_.tolist(), model.feature_names_in_.tolist()) == (
        ["old", "young"],
        ["age", "pressure", "ward"],
    )
    with pytest.raises(DataError, match=r"column 'ward' has .*'hart'.* Did you mean 'heart'"):
        model.predict(turned.assign(ward="hart"))
    with pytest.raises(DataError, match=r"no column 'age'.* Did you mean 'aged'"):
        model.predict(turned.rename(columns={"age": "aged"}))
    if not impute:
        with pytest.raises(DataError, match="1 value of column 'age' is missing"):
            model.predict(turned[:5].assign(age=[41.0, 42.0, np.nan, 43.0, 44.0]))
    with pytest.raises(CompositionError, match="SVM has no probabilities"):
        fit(SVM(), data, label="kind", impute=impute, columns=["age", "pressure"]).predict_proba(turned)


def test_a_fit_of_data_sets_knows_their_codes_of_text(tmp_path: Path) -> None:
    whole = WHOLE[~WHOLE.isna().any(axis=1) & (WHOLE.ward != "")]
    islands = atoll.data.from_dataframes({"north": whole[:90], "south": whole[90:]}, target="stay", task="regression")
    found = fit(Ridge(), islands, label="y", impute="")
    found.save(tmp_path / "fit.json")
    coded = whole.assign(ward=whole.ward.map({"heart": 0, "inner": 1, "surgery": 2}))
    theirs = found.estimator().predict(coded[["age", "pressure", "ward"]].to_numpy())
    again = FittedModel.load(tmp_path / "fit.json").to_sklearn()
    np.testing.assert_allclose(again.predict(whole[["ward", "pressure", "age"]]), theirs, rtol=1e-9)
    with pytest.raises(DataError, match=r"column 'ward' has .*'hart'.* Did you mean 'heart'"):
        again.predict(whole.assign(ward="hart"))


def test_one_label_has_one_coding():
    """Classes 0 and 1 at one party, no and yes at another, were a model of four classes without a word."""
    codes = {"north": WHOLE[:100].assign(old=(WHOLE.stay[:100] > 205).astype(int).astype(str)), "south": WHOLE[100:].assign(old=np.where(WHOLE.stay[100:] > 205, "yes", "no"))}  # fmt: skip
    with pytest.raises(DataError, match=r"the label 'old' has .*at party 'north', and .*categories=\{'old'"):
        fit(GLM(alpha=1.0), codes, label="old", columns=["age"])
    both = {"old": ["0", "1", "no", "yes"]}
    assert len(fit(GLM(alpha=1.0), codes, label="old", columns=["age"], categories=both).layout.classes) == 4
