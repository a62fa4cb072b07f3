"""The reproductions of FLARE's drivers, of its XGBoost and of its heterogeneity: what they measure, by hand and on small numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from atoll.reproduce import Lab, NotKept
from atoll_papers.flare import cifar_alpha, drivers, xgboost
from atoll_papers.flare.drivers import timed


@pytest.mark.quick("tcp")
@pytest.mark.parametrize("kind", ["tcp", "grpc"])
@pytest.mark.network
def test_rounds_over_a_driver_are_timed_and_every_byte_arrives(kind: str) -> None:
    pytest.importorskip("cryptography")
    if kind == "grpc":
        pytest.importorskip("grpc")
    found = timed(kind, clients=3, size=70_000, rounds=2)
    assert found.whole
    assert found.down.shape == found.up.shape == (2, 3)
    assert (found.down > 0).all()
    # A round has the slowest download, and then the uploads one after the other.
    assert (found.round >= found.down.max(axis=1) + 0.9 * found.up.sum(axis=1)).all()


def test_an_interval_is_the_textbooks() -> None:
    mean, half = drivers._interval(np.array([1.0, 2.0, 3.0, 4.0]))
    assert mean == 2.5
    assert half == pytest.approx(1.96 * 1.2909944 / 2)


def test_rows_like_higgs_have_its_form_and_need_trees() -> None:
    x, y, held, truth = xgboost.higgs_like(4_000, 1_000, seed=0)
    assert x.shape == (4_000, 28)
    assert held.shape == (1_000, 28)
    assert 0.3 < y.mean() < 0.7
    again = xgboost.higgs_like(4_000, 1_000, seed=0)
    np.testing.assert_array_equal(again[0], x)
    # No single measured feature says much, their products do.
    alone = max(abs(np.corrcoef(x[:, k], y)[0, 1]) for k in range(21))
    assert alone < 0.15 < abs(np.corrcoef(x[:, 21], y)[0, 1])
    del truth


@pytest.mark.slow
def test_xgboost_in_its_quick_form(tmp_path: Path) -> None:
    pytest.importorskip("xgboost")
    claims = {claim.claim: claim for claim in xgboost.ENTRY.run(Lab(tmp_path), True)}
    assert claims["bagging with one client is ordinary boosting: HIGGS-like"].verdict == "holds"
    pooled = claims["histograms of all sites make the trees of the union: HIGGS-like, 2,000 rows"]
    assert pooled.ours == pooled.paper
    same = claims["with the cuts that XGBoost finds on the union, they are its trees: HIGGS-like"]
    assert same.ours == pytest.approx(same.paper, abs=1e-3)
    assert claims["bags of trees are better than the sites alone: HIGGS-like"].verdict == "holds"


@pytest.mark.slow
def test_heterogeneity_in_its_quick_form(tmp_path: Path) -> None:
    claims = {claim.claim: claim for claim in cifar_alpha.ENTRY.run(Lab(tmp_path), True)}
    assert claims["the more heterogeneous, the lower FedAvg's accuracy"].verdict == "holds"
    assert claims["FedOpt ends better than FedAvg"].verdict == "holds"


def test_the_trainings_are_those_of_the_figure() -> None:
    made = cifar_alpha._settings("FedOpt", 0.1, False)
    assert made["data"]["partition"] == {"name": "dirichlet", "parties": 8, "alpha": 0.1, "seed": 1}
    assert made["algorithm"]["name"] == "FedAvgM"
    assert set(cifar_alpha._METHODS) == {"FedAvg", "FedProx", "FedOpt", "SCAFFOLD"}


@pytest.mark.parametrize("entry", [drivers.ENTRY, xgboost.ENTRY], ids=lambda entry: entry.name)
def test_they_keep_no_training(entry: object, tmp_path: Path) -> None:
    with pytest.raises(NotKept, match="flare-"):
        entry.run(Lab(tmp_path, kept=True), True)  # type: ignore[attr-defined]
