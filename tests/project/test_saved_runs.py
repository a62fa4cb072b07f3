"""Run folders and ledgers that an earlier version saved still open, and their jobs go on as if they had never been killed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.core.errors import PolicyError
from atoll.core.event import Ledger
from atoll.mechanisms import CentralDP
from atoll.privacy import Budget, LedgerAccount, statement
from atoll.runs import RunFolder
from tests.support import corpus, saved

KNOWN: dict[str, Any] = json.loads(corpus.FILE.read_text(encoding="utf-8"))


@pytest.mark.every(3)
@pytest.mark.parametrize("name", saved.KILLED)
def test_a_killed_job_goes_on_to_the_results_of_one_that_was_not(name: str, tmp_path: Path) -> None:
    folder = saved.unpack(name, tmp_path)
    before = RunFolder(folder).manifest()
    assert before["status"] == "running"
    done: list[Any] = []
    assert corpus.differs(saved.KILLED[name], folder, KNOWN, resume=True, on_record=done.append) == []
    after = RunFolder(folder).manifest()
    assert (after["status"], len(after["resumed"])) == ("finished", 1)
    assert [row["round"] for row in done] == ([] if name == "program" else [2, 3]), "it did not go on, but began anew"


def test_a_program_goes_on_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []

    def counted(island: Any, message: Any) -> Any:
        calls.append(1.0)
        return whole.run(island, message)

    whole = corpus.moments
    monkeypatch.setattr(corpus, "moments", replace(whole, run=counted))
    assert corpus.differs("program", saved.unpack("program", tmp_path), KNOWN, resume=True) == []
    assert len(calls) == len(corpus.SIZES)


def test_a_ledger_of_two_jobs_opens_and_a_third_spends_from_it(tmp_path: Path) -> None:
    saved.unpack(saved.LEDGER, tmp_path)
    path = tmp_path / "ledger.jsonl"
    before = path.read_bytes()
    two = _spent(path)
    assert len(two.jobs) == 2
    assert two.unprotected == ("replies of atoll.learn.linear:train",)
    assert two.spent.pld == pytest.approx(atoll.privacy.exact_epsilon(6 / 4, 1e-5))
    saved.spend(path, tmp_path / "run")
    assert path.read_bytes().startswith(before)
    three = _spent(path)
    assert (len(three.jobs), three.unprotected) == (3, two.unprotected)
    assert three.spent.pld == pytest.approx(atoll.privacy.exact_epsilon(9 / 4, 1e-5))


def _spent(path: Path) -> Any:
    """What the model says of one party."""
    rows = statement(LedgerAccount(Ledger(path, readable=True)))
    return next(row for row in rows if row.party == "client-0" and row.adversaries == ("model",))


def test_a_budget_counts_what_a_saved_ledger_has(tmp_path: Path) -> None:
    saved.unpack(saved.LEDGER, tmp_path)
    budget = Budget(epsilon=atoll.privacy.exact_epsilon(7 / 4, 1e-5), adversary="model")
    job = atoll.Training(
        model=atoll.models.linear(4, 2), rounds=2, budget=budget, selection=atoll.Everyone(),
        privacy=CentralDP(noise=2.0, clip=1.0, accountant="rdp"),
    )  # fmt: skip
    with pytest.raises(PolicyError, match="exceed the privacy budget"):
        atoll.simulate(job, corpus.clients(), ledger=tmp_path / "ledger.jsonl", progress=False)
