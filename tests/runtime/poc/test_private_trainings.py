"""Private trainings between organisations, as processes with kits over mutual TLS: a site's ledger and the server's say the same.

Their quick siblings are in ``worker/test_spending.py``, in one process.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atoll.cli import run
from atoll.core.event import Ledger
from atoll.privacy import LedgerAccount, statement
from atoll.runs import yaml

EXAMPLES = {"name": "ExampleDP", "noise": 1.5, "delta": 1e-5, "clip": 1.0, "batch": 20}
SHARED = {
    "privacy": {"name": "DistributedDP", "noise": 2.0, "delta": 1e-5, "clip": 1.0, "least": 3, "bits": 16},
    "pacing": {"name": "Synchronous", "quorum": 3},
}
JOBS: dict[str, dict[str, Any]] = {
    "DP-SGD": {"privacy": EXAMPLES},
    "DP-SGD under masks": {"privacy": EXAMPLES, "reducer": "SecureAggregation"},
    "shared noise under masks": {**SHARED, "reducer": "SecureAggregation"},
    "shared noise under masks, taken back": {
        "privacy": {**SHARED["privacy"], "least": 2, "remove_excess": True},
        "pacing": {"name": "Synchronous", "quorum": 2},
        "reducer": "SecureAggregation",
    },
    "shared noise under encryption": {**SHARED, "reducer": "Encrypted"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_the_ledgers_of_sites_and_server_agree(name: str, tmp_path: Path, capsys: Any) -> None:
    if JOBS[name].get("reducer") == "Encrypted":
        pytest.importorskip("tenseal")
    tree = {
        "model": {"name": "linear", "features": 64, "outputs": 10}, "algorithm": {"name": "FedAvg", "lr": 0.2, "batch_size": 20},
        "selection": "Everyone", "rounds": 2, "patience": 120.0, "evaluation": {"server": False}, **JOBS[name],
    }  # fmt: skip
    job = tmp_path / "job"
    job.mkdir()
    (job / "job.yaml").write_text(yaml.dump(tree), encoding="utf-8")
    assert run(["poc", str(job), "--sites", "3", "--folder", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["status"] == "finished"
    files = {path.relative_to(tmp_path / "run"): path for path in (tmp_path / "run").rglob("ledger.jsonl")}
    (server,) = (path for name, path in files.items() if "checkpoints" in name.parts and "server" in name.parts)
    whole = noise(Ledger(server, readable=True))
    assert len(whole) == 6
    for site in ("site-1", "site-2", "site-3"):
        (own,) = (path for name, path in files.items() if site in name.parts and "checkpoints" not in name.parts)
        lines = noise(Ledger(own, readable=True))
        assert lines == [line for line in whole if line["party"] == site]
        costs = [
            {(row.unit, row.adversaries): row.spent for row in statement(LedgerAccount(Ledger(path, readable=True))) if row.party == site}
            for path in (own, server)
        ]  # fmt: skip
        shared = set(costs[0]) & set(costs[1])
        assert shared
        assert all(costs[0][key] == costs[1][key] for key in shared)


def noise(ledger: Ledger) -> list[dict[str, Any]]:
    """Lines that say what noise was added, in order, without the chain and the job's name."""
    plain = [{k: v for k, v in line.items() if k not in ("job", "chain", "hash")} for line in ledger]
    return sorted((line for line in plain if line["kind"] in ("gaussian", "skellam")), key=repr)
