"""Cross-site evaluation: every model on every site's data, against models trained and measured by hand; who is left out, and why."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.algorithms import Ditto, FedAvg, OutputPerturbation
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.requests.policy import AllowAll, SitePolicy
from atoll.learn.metrics import Confusion
from atoll.models import Linear
from atoll.models.quadratic import Quadratic, quadratics
from atoll.reducers import SecureAggregation
from atoll.topology import Cyclic, Gossip, Hierarchical, Ring, Swarm
from tests.support.learn_toys import islands

SIZES = (20, 30, 25, 4)
FULL: dict[str, Any] = {"lr": 0.01, "steps": 5, "batch_size": None}


def job(**more: Any) -> Any:
    parts = {"model": Linear(4, 3), "algorithm": FedAvg(lr=0.1), "selection": atoll.Everyone(), "rounds": 2}
    return atoll.Training(**{**parts, "evaluation": atoll.Evaluation(cross_site=True), **more})


def across(data: Any = None, *, policy: Any = None, **more: Any) -> Any:
    return atoll.simulate(job(**more), data or islands(SIZES), engine="inline", seed=1, policy=policy or AllowAll())


def test_every_cell_is_the_loss_of_that_model_on_that_sites_data():
    """On quadratics, by hand: the global model, and what five more steps on one site's data make of it."""
    data, quadratic = quadratics(), {"model": Quadratic(20), "algorithm": FedAvg(**FULL)}
    result = across(data, **quadratic)
    w, n = result.params["w"], len(data)
    own = []
    for k in range(n):
        h, b = np.asarray(data.shard(k).x), np.asarray(data.shard(k).y)
        local = w
        for _ in range(5):
            local = local - 0.01 * (h @ local - b)
        own.append(local)
    found = result.cross_site
    assert found.models == ("global", *(f"site {name}" for name in data.names))
    assert found.sites == tuple(data.names)

    def loss(model: np.ndarray, k: int) -> float:
        h, b = np.asarray(data.shard(k).x), np.asarray(data.shard(k).y)
        return float(0.5 * model @ h @ model - b @ model)

    by_hand = [[loss(model, k) for k in range(n)] for model in (w, *own)]
    np.testing.assert_allclose(found.matrix("loss"), by_hand, rtol=1e-9)
    diagonal = np.diag(found.matrix("loss")[1:])
    assert (diagonal < found.matrix("loss")[0]).all()  # each site's own model suits it better than the global one


def test_it_changes_nothing_of_the_training():
    plain = across(evaluation=atoll.Evaluation())
    crossed = across()
    assert plain.cross_site is None
    assert list(plain.metrics) == list(crossed.metrics)
    np.testing.assert_array_equal(plain.params["weight"], crossed.params["weight"])


@pytest.mark.parametrize(
    "topology", [Hierarchical(groups=2), Gossip(graph=Ring()), Cyclic(), Swarm()], ids=lambda t: type(t).__name__
)
def test_every_topology_has_it(topology: Any):
    found = across(topology=topology).cross_site
    assert found.matrix("accuracy").shape == (5, 4)
    assert not np.isnan(found.matrix("accuracy")).any()


def test_the_best_global_model_has_a_row_and_metrics_are_there():
    evaluation = atoll.Evaluation(cross_site=True, metrics=[Confusion(3)])
    result = across(keep_best="test/accuracy", evaluation=evaluation)
    assert result.cross_site.models[:2] == ("global", "global (best)")
    assert {"loss", "accuracy", "f1_macro"} <= set(result.cross_site.values)
    with pytest.raises(ConfigError, match=r"no 'accuracies'.*Did you mean 'accuracy'"):
        result.cross_site.matrix("accuracies")


def test_personal_models_are_the_sites_own():
    result = across(
        algorithm=Ditto(lr=0.1, lam=0.1), evaluation=atoll.Evaluation(cross_site=True, clients=-1, personal=True)
    )
    personal = result.metrics[-1]["personal/accuracy/values"]
    np.testing.assert_allclose(np.diag(result.cross_site.matrix("accuracy")[1:]), personal, atol=1e-6)


def test_a_small_site_tells_nothing_and_sends_no_model():
    found = across(evaluation=atoll.Evaluation(cross_site=True, min_count=10)).cross_site
    assert "site client-3" not in found.models
    assert np.isnan(found.matrix("loss")[:, 3]).all()
    assert not np.isnan(found.matrix("loss")[:, :3]).any()
    assert found.examples == (20, 30, 25, 0)
    assert "fewer rows than min_count=10" in found.withheld["client-3"]


def test_without_a_minimum_count_it_is_the_largest_of_the_policies():
    found = across(policy={"client-1": SitePolicy(min_count=22)}).cross_site
    assert found.examples == (0, 30, 25, 0)
    assert "fewer rows than min_count=22" in found.withheld["client-0"]


@pytest.mark.parametrize(
    ("policy", "least", "why"),
    [
        (SitePolicy(min_count=50), 1, "min_count=1, but this site requires at least 50 rows"),
        (
            SitePolicy(tasks=("atoll.models.*", "atoll.learn.linear*")),
            None,
            "atoll.learn.cross_site:judge may not run here",
        ),
    ],
    ids=["min_count", "tasks"],
)
def test_a_site_that_refuses_is_named_and_costs_the_others_nothing(policy: Any, least: int | None, why: str):
    result = across(policy={"client-1": policy}, evaluation=atoll.Evaluation(cross_site=True, min_count=least))
    found = result.cross_site
    assert len(result.metrics) == 2
    assert why in found.withheld["client-1"]
    assert np.isnan(found.matrix("loss")[:, 1]).all()
    others = np.delete(found.matrix("loss"), 1, axis=1)
    assert not np.isnan(others).any()


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        (
            {"reducer": SecureAggregation()},
            "lets each site train a model of its own.*SecureAggregation reveals sums only",
        ),
        ({"algorithm": OutputPerturbation(base=FedAvg(lr=0.1), tau=1.0, sigma=0.5)}, "without noise"),
        ({"evaluation": atoll.Evaluation()}, ""),
    ],
    ids=["secure sums", "privacy", "neither"],
)
def test_it_is_refused_where_it_would_break_a_promise(parts: Any, why: str):
    if not why:
        assert across(**parts).cross_site is None
        return
    with pytest.raises(CompositionError, match=why):
        across(**parts)


def test_min_count_belongs_to_it():
    with pytest.raises(ConfigError, match="min_count=5 with cross_site=False"):
        atoll.Evaluation(min_count=5)


def test_report_and_run_folder_have_it(tmp_path: Any):
    result = atoll.simulate(
        job(keep_best="test/accuracy"), islands(SIZES), engine="inline", seed=1, folder=tmp_path / "run"
    )
    told = json.loads((tmp_path / "run" / "cross_site.json").read_text())
    np.testing.assert_allclose(told["values"]["accuracy"], result.cross_site.matrix("accuracy"))
    page = result.report(tmp_path / "report.html").read_text()
    assert "Cross-site evaluation" in page
    assert f"{result.cross_site.matrix('loss')[2, 1]:.4g}" in page
