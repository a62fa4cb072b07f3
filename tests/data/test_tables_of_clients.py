"""A user gives `simulate` a table for each client. The oracle is `from_dataframes`, whose rows are the same, and scikit-learn for a metric of the user's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

import atoll
from atoll.core.job import Job
from atoll.data import from_dataframes
from atoll.fitting import GLM, Fit
from atoll.statistics import Statistics
from atoll.trees import Trees


def hospital(patients: int, seed: int) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    age, ward = draw.normal(60, 12, patients).round(1), draw.choice(["internal", "surgery"], patients)
    died = (draw.random(patients) < 1 / (1 + np.exp(-(age - 60) / 6 - (ward == "surgery")))).astype(int)
    return pd.DataFrame({"age": age, "pressure": draw.normal(130, 15, patients).round(), "ward": ward, "y": died})


FRAMES = {"north": hospital(60, 0), "south": hospital(40, 1)[["y", "ward", "age", "pressure"]]}
"""One hospital has its columns in another order."""
ARRAYS = {name: {str(column): frame[column].to_numpy() for column in frame} for name, frame in FRAMES.items()}


def ranked(scores: np.ndarray, labels: np.ndarray) -> float:
    """The area under the curve of one client's rows."""
    return float(roc_auc_score(labels, scores[:, 1] - scores[:, 0]))


TRAINING = atoll.Training(
    model=atoll.models.linear(3, 2),
    algorithm=atoll.FedAvg(lr=1e-4),
    selection=atoll.Everyone(),
    rounds=2,
    evaluation=atoll.Evaluation(clients=-1, metrics=[ranked]),
)


def _simulate(job: Job, data: Any) -> Any:
    return atoll.simulate(job, data, engine="inline", progress=False)


@pytest.mark.parametrize("given", [FRAMES, ARRAYS], ids=["frames", "arrays"])
def test_a_table_for_each_client_is_what_from_dataframes_reads(given: dict[str, Any]) -> None:
    read = from_dataframes(FRAMES, target="y")
    there, here = (_simulate(TRAINING, data) for data in (given, read))
    assert there.metrics[-1] == here.metrics[-1]
    assert all(np.array_equal(there.params[name], own) for name, own in here.params.items())
    fit, fitted = Fit(model=GLM(alpha=0.0), label="y"), {}
    for name, data in {"given": given, "read": read}.items():
        fitted[name] = {
            k.partition("=")[0]: one["estimate"] for k, one in _simulate(fit, data).outcome.coefficients.items()
        }
    assert fitted["given"] == pytest.approx(fitted["read"], rel=1e-6)  # a data set has features of half the width
    rows = pd.concat(FRAMES.values())[["age", "pressure", "ward"]]
    trees, grown = (_simulate(Trees(rounds=3), data).outcome for data in (given, read))
    coded = rows.assign(ward=(rows.ward == "surgery").astype(float)).to_numpy(np.float32)
    assert np.allclose(trees.predict_proba(rows), grown.predict_proba(coded), atol=1e-6)
    age = _simulate(Statistics(), given).outcome.whole["age"]
    assert (age.count, age.mean) == (100, pytest.approx(rows.age.mean(), rel=1e-12))


def test_a_plain_function_is_a_metric_and_the_result_says_how_clients_are_joined() -> None:
    result = _simulate(TRAINING, FRAMES)
    chances = {name: result.predict_proba(frame)[:, 1] for name, frame in FRAMES.items()}
    areas = [float(roc_auc_score(FRAMES[name].y, own)) for name, own in chances.items()]
    row = result.metrics[-1]
    assert row["clients/ranked/values"] == pytest.approx(areas, abs=1e-6)
    assert row["clients/ranked"] == pytest.approx(np.average(areas, weights=[60, 40]), abs=1e-6)
    said = [line for line in result.notices if "clients/ranked" in line]
    assert len(said) == 1
    assert "the mean of the clients' own values" in said[0]
