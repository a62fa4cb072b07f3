"""Personal models in PyTorch: the same one by one and in blocks, and measured with what belongs to the client."""

import numpy as np
import pytest
from torch import nn

import atoll
from atoll.algorithms import Ditto, PFedMe
from atoll.core.errors import CompositionError


def mlp():
    return nn.Sequential(nn.Linear(64, 6), nn.Tanh(), nn.Linear(6, 10))


def normalised():
    return nn.Sequential(nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 10))


def islands():
    return atoll.data.dirichlet(atoll.data.digits(), parties=5, alpha=0.2, seed=1)


def run(algorithm, engine, model=mlp, **parts):
    parts = {
        "selection": atoll.Uniform(3),
        "evaluation": atoll.Evaluation(clients=-1, personal=True),
        "rounds": 3,
        **parts,
    }
    return atoll.simulate(atoll.Training(model=model, algorithm=algorithm, **parts), islands(), engine=engine, seed=2)


@pytest.mark.slow
@pytest.mark.quick("Ditto-batched", "PFedMe-processes")
@pytest.mark.parametrize("engine", ["batched", "processes"])
@pytest.mark.parametrize(
    "algorithm",
    [Ditto(lr=0.2, lam=0.1), PFedMe(lr=0.02, personal_lr=0.05, lam=15.0, k=3)],
    ids=lambda a: type(a).__name__,
)
def test_one_by_one_and_on_other_engines_are_the_same(algorithm, engine):
    one, many = run(algorithm, "inline"), run(algorithm, engine)
    for name, leaf in one.params.items():
        np.testing.assert_allclose(many.params[name], leaf, rtol=2e-4, atol=2e-5)
    a, b = one.metrics[-1], many.metrics[-1]
    np.testing.assert_allclose(b["personal/loss/values"], a["personal/loss/values"], rtol=1e-3, atol=1e-5)
    assert a["personal/loss"] < a["clients/loss"]


def test_running_statistics_that_stay_at_the_client_are_part_of_its_model():
    parts = {"buffers": "local", "selection": atoll.Everyone()}
    row = run(atoll.FedAvg(lr=0.1), "inline", normalised, **parts).metrics[-1]
    # Measured alone, the global parameters meet the client's own statistics too.
    assert row["personal/loss"] == row["clients/loss"]
    with pytest.raises(CompositionError, match="FedAvg keeps no personal models"):
        run(atoll.FedAvg(lr=0.1), "inline", normalised)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sequential is trained client by client:RuntimeWarning")
def test_averaged_statistics_travel_with_personal_parameters():
    row = run(Ditto(lr=0.1, lam=0.0), "batched", normalised, selection=atoll.Everyone()).metrics[-1]
    assert row["personal/loss"] < row["clients/loss"]
