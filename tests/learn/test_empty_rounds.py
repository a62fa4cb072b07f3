"""Replies of 0 examples and metrics that are no number, in every pacing: the first are no step, the second cost no update."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll import FedAvg, Training
from atoll.core.errors import QuorumError
from atoll.core.requests.cohort import Community
from atoll.data import Dataset, Islands
from atoll.pacing import SAFA, FedAsync, FedBuff, HybridFL, PartialBarrier, Synchronous, Tiered
from atoll.reducers import SecureAggregation
from atoll.selection import Everyone, Uniform
from atoll.topology import Hierarchical
from atoll.torch import CustomLoop

NAN = float("nan")
PACINGS: dict[str, dict[str, Any]] = {
    "Synchronous": {"pacing": Synchronous()},
    "FedAsync": {"pacing": FedAsync(arrivals=3)},
    "FedBuff": {"pacing": FedBuff(buffer=3)},
    "PartialBarrier": {"pacing": PartialBarrier(replies=3)},
    "Tiered": {"pacing": Tiered(tiers=1, by="observed")},
    "SAFA": {"pacing": SAFA()},
    "HybridFL": {"pacing": HybridFL(on_failure="stop"), "topology": Hierarchical(groups=1), "selection": Uniform(1.0)},
}


def _loop(model: nn.Module, rows: Any, config: Any, rng: Any) -> dict[str, float]:
    with torch.no_grad():
        for p in model.parameters():
            p += len(rows)
    return {"auc": NAN if len(rows) == 4 else len(rows) / 100}


def trained(sizes: tuple[int, ...], **parts: Any) -> Any:
    """Clients add their number of rows to a model that begins with zeros; the AUC of four rows is NaN."""
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    data = {
        f"c{k}": Dataset({"x": np.ones((n, 2), np.float32), "y": np.arange(n) % 2}, classes=2)
        for k, n in enumerate(sizes)
    }
    parts = {"selection": Everyone(), "rounds": 1, "evaluation": atoll.Evaluation(server=False), **parts}
    job = Training(model=CustomLoop(model, _loop), algorithm=FedAvg(), **parts)
    return atoll.simulate(job, Islands.from_datasets(data), engine="inline", progress=False)


@pytest.mark.parametrize("how", list(PACINGS))
def test_rounds_without_examples_are_refused(how: str) -> None:
    words = "none of the 3 clients has rows" if how == "SAFA" else "0 examples|no client|clients submitted|of 0 clients"
    with pytest.raises(QuorumError, match=words):
        trained((0, 0, 0), rounds=3, **PACINGS[how])


@pytest.mark.parametrize("how", ["FedAsync", "FedBuff", "Tiered"])
def test_a_client_without_examples_moves_no_model(how: str) -> None:
    """FedAsync mixed a reply of 0 examples in as no change of its base, which took the server's model back to it."""
    made = trained((0, 8), rounds=6, **{**PACINGS[how], "pacing": type(PACINGS[how]["pacing"])(**ONE[how])})
    failed = [row for row in made.metrics if "failed" in row]
    assert len(failed) >= 1
    assert all("all 1 replies are of 0 examples" in row["failed"] for row in failed)
    if how != "Tiered":  # whose mixture counts the model of the other tier
        alone = trained(
            (8,), rounds=6 - len(failed), **{**PACINGS[how], "pacing": type(PACINGS[how]["pacing"])(**ONE[how])}
        )
        np.testing.assert_allclose(made.params["weight"], alone.params["weight"], rtol=0.35)
    assert float(made.params["weight"][0, 0]) > 5
    assert any("of 6 rounds failed" in line for line in made.notices)


ONE = {
    "FedAsync": {"alpha": 1.0},
    "FedBuff": {"buffer": 1},
    "Tiered": {"tiers": 2, "by": "observed"},
}


@pytest.mark.parametrize("how", list(PACINGS))
def test_a_metric_that_is_no_number_costs_no_update_in_any_pacing(how: str) -> None:
    row = trained((4, 8, 12), **PACINGS[how]).metrics[-1]
    assert (row["replied"], row["rejected"]) == (3, 0)
    assert row["auc"] == pytest.approx((8 * 0.08 + 12 * 0.12) / 20)
    assert row["partial_metrics"] == {"auc": "20 of 24 examples"}


@pytest.mark.parametrize("how", list(PACINGS))
def test_a_metric_of_all_replies_is_told_without_a_word(how: str) -> None:
    assert "partial_metrics" not in trained((8, 12, 16), **PACINGS[how]).metrics[-1]


@atoll.task
def judged(island: Any, message: Any) -> Any:
    n = len(island.data)
    return {
        "w": atoll.Mean(np.full(2, float(n)), examples=n),
        "auc": atoll.Mean(message if n == 4 else np.float64(n / 100), examples=n, role="metric"),
        "none": atoll.Mean(np.float64(NAN), examples=n, role="metric"),
    }


@pytest.mark.parametrize("reducer", [None, SecureAggregation()], ids=["plain", "masked"])
@pytest.mark.parametrize("bad", [NAN, float("inf")])
def test_a_task_of_ones_own_may_have_a_metric_that_is_no_number(bad: float, reducer: Any) -> None:
    async def program(fed: Any) -> Any:
        return await fed.sum(fed.parties, judged, np.float64(bad), reducer=reducer)

    made = atoll.simulate(
        program, Community({"a": range(4), "b": range(8), "c": range(12)}), engine="inline", progress=False
    )
    assert (made.n, made.rejected) == (3, {})
    np.testing.assert_allclose(made["w"], (16 + 64 + 144) / 24, rtol=1e-6)
    assert made["auc"] == pytest.approx((8 * 0.08 + 12 * 0.12) / 20)
    assert made.weight["auc"] == 20
    assert np.isnan(made["none"])  # a number that nobody measured is not 0
    assert made.weight["none"] == 0


@atoll.task
def named_after_rows(island: Any, message: Any) -> Any:
    n = len(island.data)
    return {
        "w": atoll.Mean(np.zeros(1 + (n > 10)), examples=n),
        f"m{n}": atoll.Mean(np.float64(1.0), examples=n, role="metric"),
    }


def test_replies_with_other_metrics_have_no_masked_sum_and_are_named() -> None:
    async def program(fed: Any) -> Any:
        return await fed.sum(fed.parties, named_after_rows, reducer=SecureAggregation())

    with pytest.raises(QuorumError, match=r"some lack 'm4', 'm8'.*a metric that a party cannot compute is NaN"):
        atoll.simulate(program, Community({"a": range(4), "b": range(8)}), engine="inline", progress=False)


@pytest.mark.parametrize("n", [-5, 2**63, float("inf"), NAN])
def test_a_number_of_examples_that_cannot_be_is_refused_where_it_is_given(n: float, capsys: Any) -> None:
    from atoll.core.errors import DataError

    with atoll.client.connect({"w": np.ones(2)}) as fed:
        for one in fed.rounds():
            with pytest.raises(
                DataError, match=r"examples=.*count the rows that the model was trained on: a number from 0 to 2\^53"
            ):
                one.reply({"w": one.model["w"]}, examples=n)
            one.reply({"w": one.model["w"]}, examples=2**53)
