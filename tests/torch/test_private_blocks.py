"""DP-SGD in blocks of clients: the numbers and the ledger of one client after another, errors that belong to one client, and nothing that is made twice."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll.algorithms import FedAvg, Scaffold
from atoll.core.errors import AtollError
from atoll.core.event import Ledger
from atoll.mechanisms import ExampleDP
from atoll.reducers import SecureAggregation
from atoll.torch.learner import TorchLearner

ROWS = atoll.data.digits()
ENDS = (0, 7, 40, 41, 130, 131, 200)
DATA = atoll.data.Islands.from_datasets([ROWS.take(slice(a, b)) for a, b in itertools.pairwise(ENDS)])


def model(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return made(name)


def made(name: str) -> nn.Module:
    return {"linear": lambda: nn.Linear(64, 10), "mlp": lambda: nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))}[name]()  # fmt: skip


def job(name: str = "linear", algorithm: Any = None, **more: Any) -> atoll.Training:
    privacy = ExampleDP(noise=1.0, clip=1.0, delta=1e-5, accountant="rdp")
    return atoll.Training(
        model=model(name), algorithm=algorithm or FedAvg(lr=0.1, batch_size=10), selection=atoll.Everyone(), rounds=2,
        privacy=privacy, **more,
    )  # fmt: skip


def run(training: atoll.Training, engine: str, folder: Path, data: Any = DATA, **more: Any) -> tuple[Any, list[str]]:
    world = {"engine": engine, "seed": 3, "secret_seed": 5, "progress": False, "folder": folder / engine, **more}
    result = atoll.simulate(training, data, **world)
    lines = Ledger(folder / engine / "checkpoints" / "ledger.jsonl")
    plain = sorted(repr({k: v for k, v in line.items() if k not in ("hash", "chain")}) for line in lines)
    return result, plain


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the cohorts that were trained in blocks."""
    seen: list[int] = []
    real = TorchLearner._release_many

    def noted(self: TorchLearner, cohort: Any, message: Any) -> Any:
        seen.append(len(cohort))
        return real(self, cohort, message)

    monkeypatch.setattr(TorchLearner, "_release_many", noted)
    return seen


@pytest.mark.quick("FedAvg-linear", "Scaffold-mlp")
@pytest.mark.parametrize("name", ["linear", "mlp"])
@pytest.mark.parametrize("algorithm", [FedAvg(lr=0.1, batch_size=10, epochs=2), Scaffold(lr=0.1, batch_size=10)], ids=["FedAvg", "Scaffold"])  # fmt: skip
def test_blocks_give_the_numbers_and_the_ledger_of_single_clients(
    algorithm: Any, name: str, tmp_path: Path, blocks: list[int]
) -> None:
    (alone, ledger), (together, other) = (run(job(name, algorithm), e, tmp_path) for e in ("inline", "batched"))
    assert blocks == [6, 6]
    assert ledger == other
    assert len(ledger) >= 12
    for leaf, value in alone.params.items():
        np.testing.assert_allclose(together.params[leaf], value, atol=1e-6)
    assert [row["bytes_up"] for row in together.metrics] == [row["bytes_up"] for row in alone.metrics]
    assert "loss" not in together.metrics[-1]


@pytest.mark.slow
def test_a_client_without_rows_and_one_that_fails_are_as_they_are_alone(tmp_path: Path) -> None:
    """The error belongs to its client; the others train all the same."""
    cuts = {"c0": slice(5, 30), "c1": slice(0, 0), "c2": slice(0, 5), "c3": slice(30, 60)}
    parts = {name: (ROWS.x[cut], ROWS.y[cut] + (90 if name == "c2" else 0)) for name, cut in cuts.items()}
    data = atoll.data.Islands.from_datasets(
        {name: atoll.data.Dataset({"x": x, "y": y}) for name, (x, y) in parts.items()}
    )
    pacing = atoll.Synchronous(quorum=1)
    found = {e: run(job(pacing=pacing), e, tmp_path, data, errors="drop") for e in ("inline", "batched")}
    (alone, ledger), (together, other) = found["inline"], found["batched"]
    assert ledger == other
    assert [sorted(row.get("errors", {})) for row in together.metrics] == [["c2"], ["c2"]]
    assert [row["replied"] for row in together.metrics] == [row["replied"] for row in alone.metrics]
    for leaf, value in alone.params.items():
        np.testing.assert_allclose(together.params[leaf], value, atol=1e-6)


def test_a_killed_round_is_not_noised_again(tmp_path: Path) -> None:
    """Replies of a round are in the journal before they are used: a resumed run takes them from there, and spends no second time."""

    class _StopError(Exception):
        pass

    def stop(row: dict[str, Any]) -> None:
        raise _StopError("after round 1")

    training = job(checkpoint_every=2)
    with pytest.raises(_StopError, match="after round 1"):
        run(training, "batched", tmp_path, secret_seed=None, on_record=stop)
    ledger = tmp_path / "batched" / "checkpoints" / "ledger.jsonl"
    before = [line["request"] for line in Ledger(ledger)]
    made, _ = run(training, "batched", tmp_path, secret_seed=None, resume=True)
    after = [line["request"] for line in Ledger(ledger)]
    assert after[: len(before)] == before
    assert len(after) == 12
    assert made.metrics.last("epsilon") == pytest.approx(made.prepared.claim.epsilon, rel=1e-6)


def test_under_masks_and_under_a_policy_clients_train_one_by_one(tmp_path: Path, blocks: list[int]) -> None:
    run(job(reducer=SecureAggregation()), "batched", tmp_path)
    assert blocks == []


def test_a_ledger_that_refuses_stops_its_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from atoll.core.errors import PolicyError

    def guard(self: Ledger, event: Any, party: Any, *rest: Any, **more: Any) -> None:
        if party == "client-3":
            raise PolicyError("its budget is spent", where="ledger", remedy="none")
        real(self, event, party, *rest, **more)

    real = Ledger.append
    monkeypatch.setattr(Ledger, "append", guard)
    found = [run(job(pacing=atoll.Synchronous(quorum=1)), e, tmp_path)[0] for e in ("inline", "batched")]
    for result in found:
        assert [row["rejected_clients"] for row in result.metrics] == [found[0].metrics[0]["rejected_clients"]] * 2
        assert "its budget is spent" in result.metrics[0]["rejected_clients"]["client-3"]
    assert issubclass(PolicyError, AtollError)
