"""scikit-learn pipelines: transformers fitted over all clients are those of the pooled rows, and the last estimator trains behind them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import atoll
from atoll.core.errors import AtollError, CompositionError, ConfigError
from atoll.data import Dataset, Islands
from atoll.models.estimators import FitTransformers
from atoll.models.estimators.fitting import make_listed_block, make_quartile_block, principal, spread, stand_in_rows
from atoll.reducers import SecureAggregation
from atoll.secure import FixedPoint

pytest.importorskip("sklearn")
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    RobustScaler,
    StandardScaler,
)

SIZES = (50, 31, 7)


def hospitals() -> Islands:
    """Three tables with two numbers of different size and two kinds of codes; each hospital lacks one code."""
    draw, tables = np.random.default_rng(0), {}
    for k, rows in enumerate(SIZES):
        age, pressure = draw.normal(50 + 10 * k, 12, rows), draw.normal(13000, 1500, rows)
        ward = draw.choice(np.delete(["a", "b", "c"], k), rows)
        sex = draw.choice(["f", "m"], rows)
        died = draw.random(rows) < 1 / (1 + np.exp(-(age - 60) / 5 - 2 * (ward == "a")))
        frame = {"age": age, "pressure": pressure, "ward": ward, "sex": sex, "died": died.astype(int)}
        tables[f"hospital-{k}"] = pd.DataFrame(frame)
    return atoll.data.from_dataframes(tables, target="died")


def pooled(islands: Islands) -> tuple[np.ndarray, np.ndarray]:
    rows = islands.pooled()
    return np.asarray(rows.x, dtype=np.float64), np.asarray(rows.y)


def columns() -> ColumnTransformer:
    return ColumnTransformer(
        [("numbers", StandardScaler(), ["age", "pressure"]), ("codes", OneHotEncoder(), ["ward", "sex"])]
    )


TRANSFORMERS = {
    "standard": [StandardScaler()],
    "limits": [MinMaxScaler(), MaxAbsScaler()],
    "codes": [OrdinalEncoder()],
    "one hot, sparse": [OneHotEncoder(handle_unknown="ignore")],
    "one after the other": [MinMaxScaler((1, 2)), PolynomialFeatures(2), StandardScaler(), Normalizer()],
    "left out": ["passthrough", StandardScaler(with_mean=False)],
    "columns": [columns(), StandardScaler()],
    "quartiles": [RobustScaler(), PCA(2), RobustScaler(with_centering=False)],
    "beside each other": [
        ColumnTransformer(
            [
                ("a", PCA(2, whiten=True), [0, 1]),
                ("b", RobustScaler(), [2]),
                ("c", StandardScaler(), [3]),
                ("d", Normalizer(), [0, 1]),
            ]
        )
    ],
    "by position": [
        ColumnTransformer([("a", MinMaxScaler(), [0]), ("b", OneHotEncoder(), slice(2, 4))], remainder="passthrough")
    ],
}


@pytest.mark.quick("inline-*", "processes-columns")
@pytest.mark.parametrize("name", TRANSFORMERS)
@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_transformers_are_those_of_the_pooled_rows(name: str, engine: str) -> None:
    islands = hospitals()
    steps = [(f"step {i}", step) for i, step in enumerate(TRANSFORMERS[name])]
    fitted = atoll.simulate(
        FitTransformers(Pipeline([*steps, ("last", SGDClassifier())])), islands, engine=engine
    ).outcome
    x, _ = pooled(islands)
    places = {"age": 0, "pressure": 1, "ward": 2, "sex": 3}
    expected = Pipeline(steps)
    if name == "columns":
        parts = [(n, part, [places[c] for c in chosen]) for n, part, chosen in columns().transformers]
        expected = Pipeline([("step 0", ColumnTransformer(parts)), *steps[1:]])
    rows = [pipeline.transform(x) for pipeline in (fitted[:-1], expected.fit(x))]
    a, b = (made.toarray() if hasattr(made, "toarray") else made for made in rows)
    np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def test_quartiles_and_components_follow_from_sums_that_nobody_sees_singly() -> None:
    masked = SecureAggregation(codec=FixedPoint(value_bits=50, weight_bits=0, value_range=2.0**16))
    steps = [RobustScaler(), PCA(2)]
    fitted = atoll.simulate(
        FitTransformers(make_pipeline(*steps, SGDClassifier()), reducer=masked), hospitals()
    ).outcome
    x, _ = pooled(hospitals())
    expected = make_pipeline(RobustScaler(), PCA(2)).fit(x)
    np.testing.assert_allclose(fitted[:-1].transform(x), expected.transform(x), atol=1e-5)


def test_stand_in_rows_have_what_was_asked_for() -> None:
    draw = np.random.default_rng(3)
    root = draw.normal(size=(3, 3))
    blocks = [
        principal((0, 1, 2), np.array([1.0, 2.0, 3.0]), root @ root.T),
        make_quartile_block(3, np.array([-1.0, 0.5, 4.0])),
        spread(4, 7.0, 2.0),
        make_listed_block(5, np.arange(9.0)),
    ]
    rows = stand_in_rows(blocks, 7)
    assert len(rows) == 9
    np.testing.assert_allclose(rows[:, :3].mean(axis=0), [1, 2, 3], rtol=1e-12)
    np.testing.assert_allclose(np.cov(rows[:, :3].T), root @ root.T, atol=1e-12)
    assert np.percentile(rows[:, 3], [25, 50, 75]).tolist() == [-1.0, 0.5, 4.0]
    assert (rows[:, 4].mean(), rows[:, 4].std()) == (pytest.approx(7.0), pytest.approx(2.0))
    assert sorted(rows[:, 5].tolist()) == list(range(9))
    assert set(rows[:, 6]) == {0.0}


@pytest.mark.parametrize(
    "last", [SGDClassifier(loss="log_loss", random_state=0), LogisticRegression()], ids=["partial", "whole"]
)
def test_the_last_estimator_learns_behind_the_transformers(last: object) -> None:
    islands = hospitals()
    pipeline = atoll.simulate(FitTransformers(make_pipeline(columns(), last)), islands).outcome
    job = atoll.Training(model=pipeline, algorithm=atoll.FedAvg(epochs=2), selection=atoll.Everyone(), rounds=8)
    model = atoll.simulate(job, islands).model
    x, y = pooled(islands)
    assert isinstance(model, Pipeline)
    reached = make_pipeline(pipeline.steps[0][1], type(last)(**last.get_params())).fit(x, y).score(x, y)
    assert model.score(x, y) > reached - 0.05
    assert model.steps[0][1] is pipeline.steps[0][1]
    assert not hasattr(pipeline.steps[-1][1], "coef_")  # what was given is not changed
    most = max(np.mean(y == 0), np.mean(y == 1))
    assert model.score(x, y) > most + 0.02


def test_an_unfitted_pipeline_says_how_to_fit_it() -> None:
    job = atoll.Training(
        model=make_pipeline(StandardScaler(), SGDClassifier()),
        algorithm=atoll.FedAvg(),
        selection=atoll.Everyone(),
        rounds=1,
    )
    with pytest.raises(ConfigError, match=r"'standardscaler' \(StandardScaler\) is not fitted.*FitTransformers"):
        atoll.simulate(job, hospitals())


class Hidden(atoll.core.Plain):
    """A reducer that says that it hides single replies."""

    secure = True


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (
            lambda: FitTransformers(make_pipeline(PowerTransformer(), SGDClassifier())),
            ConfigError,
            "PowerTransformer cannot be fitted",
        ),
        (
            lambda: FitTransformers(make_pipeline(PCA(2, svd_solver="randomized"), SGDClassifier())),
            ConfigError,
            "PCA\\(svd_solver='randomized'\\)",
        ),
        (
            lambda: FitTransformers(make_pipeline(SimpleImputer(), SGDClassifier())),
            ConfigError,
            r"SimpleImputer cannot be fitted .*Fit\(model=Columns\(\), impute=",
        ),
        (
            lambda: FitTransformers(
                make_pipeline(ColumnTransformer([("a", PCA(2), [0, 1]), ("b", MinMaxScaler(), [1])]), SGDClassifier())
            ),
            ConfigError,
            "column 1 goes through PCA and MinMaxScaler beside each other",
        ),
        (
            lambda: FitTransformers(make_pipeline(RobustScaler(quantile_range=(5.0, 95.0)), SGDClassifier())),
            ConfigError,
            "RobustScaler\\(quantile_range=",
        ),
        (
            lambda: FitTransformers(make_pipeline(OneHotEncoder(min_frequency=3), SGDClassifier())),
            ConfigError,
            "min_frequency=3",
        ),
        (lambda: FitTransformers(SGDClassifier()), ConfigError, "pipeline is a SGDClassifier"),
        (
            lambda: FitTransformers(
                make_pipeline(ColumnTransformer([("a", StandardScaler(), ["agee"])]), SGDClassifier())
            ),
            ConfigError,
            "no column 'agee'. Did you mean 'age'",
        ),
        (
            lambda: FitTransformers(make_pipeline(MinMaxScaler(), SGDClassifier()), reducer=Hidden()),
            CompositionError,
            "MinMaxScaler needs each client's limits",
        ),
    ],
)
def test_what_cannot_be_fitted_is_refused(make: object, error: type[AtollError], match: str) -> None:
    with pytest.raises(error, match=match):
        atoll.simulate(make(), hospitals())


def test_a_client_without_rows_changes_nothing() -> None:
    islands = hospitals()
    empty = Dataset({"x": np.zeros((0, 4)), "y": np.zeros(0, np.int64)}, classes=2)
    more = Islands.from_datasets({**{n: islands.shard(n).dataset() for n in islands.names}, "empty": empty})
    pipeline = make_pipeline(MinMaxScaler(), StandardScaler(), SGDClassifier())
    x, _ = pooled(islands)
    a, b = (atoll.simulate(FitTransformers(pipeline), each).outcome[:-1].transform(x) for each in (islands, more))
    np.testing.assert_allclose(a, b, rtol=1e-12)
