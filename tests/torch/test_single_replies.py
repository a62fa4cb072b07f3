"""A PyTorch model where single replies are wanted, and its metrics of scores."""

import numpy as np
import pytest
from sklearn.metrics import f1_score

import atoll
from atoll.aggregation import KeepLocal
from atoll.learn.metrics import Confusion


def run(engine: str, **changes):
    rows = atoll.data.linear(1, examples=120, dims=4, classes=3, seed=0).pooled()
    islands = atoll.data.iid(rows, parties=6, seed=0).with_test(rows)
    job = atoll.Training(
        model=atoll.models.logistic(4, 3),
        algorithm=atoll.FedAvg(lr=0.5),
        selection=atoll.Uniform(4),
        rounds=3,
        compile="never",
        **changes,
    )
    return atoll.simulate(job, islands, engine=engine, workers=1), rows


def test_an_aggregation_that_keeps_local_models_runs_in_blocks_as_one_by_one():
    (one_by_one, _), (blocks, _) = (run(engine, aggregation=KeepLocal()) for engine in ("inline", "batched"))
    for name, value in one_by_one.params.items():
        np.testing.assert_allclose(blocks.params[name], value, rtol=1e-5, atol=1e-6)


def test_metrics_of_scores_are_those_of_the_exported_model():
    import torch

    result, rows = run("batched", evaluation=atoll.Evaluation(metrics=[Confusion(3)]))
    with torch.no_grad():
        predicted = result.model(torch.tensor(rows.x)).argmax(1).numpy()
    assert result.metrics.last("test/f1_macro") == pytest.approx(f1_score(rows.y, predicted, average="macro"))
