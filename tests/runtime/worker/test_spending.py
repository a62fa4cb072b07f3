"""What a job's part at a site writes into the privacy ledger, without daemons: the job's own file takes the place of the site's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import atoll.data
from atoll.core.errors import PolicyError
from atoll.core.event import Gaussian, Ledger
from atoll.core.requests.policy import SitePolicy
from atoll.privacy import Budget, Demand, LedgerAccount, exact_epsilon, statement
from atoll.runs import RunFolder
from atoll.runtime.job_spec import parse_job
from atoll.runtime.worker.sitedata import load_site_data
from tests.support.work_toys import held, islands_of, site_of

JOB: dict[str, Any] = {
    "model": {"name": "linear", "features": 4, "outputs": 3}, "selection": "Everyone", "rounds": 3, "patience": 20.0
}  # fmt: skip
NOISE = [{"name": "Clip", "bound": 1.0}, {"name": "GaussianNoise", "multiplier": 4.0}]


ROWS = atoll.data.iris()
PARTS = {name: ROWS.take(slice(i, None, 2)) for i, name in enumerate(("a", "b"))}


def sites(policy: SitePolicy | None = None) -> Any:
    return {n: (lambda n=n, part=part: replace(site_of(n, part), policy=policy)) for n, part in PARTS.items()}


def lines(folder: Path, site: str = "a") -> list[dict[str, Any]]:
    return [
        line for line in Ledger(folder / "at" / site / "ledger.jsonl", readable=True) if line["kind"] == Gaussian.kind
    ]


def test_a_site_books_noise_that_the_server_adds_when_the_job_begins_and_once(tmp_path: Path) -> None:
    job = {**JOB, "privacy": {"name": "CentralDP", "noise": 2.0, "delta": 1e-5, "clip": 1.0, "adversary": "model"}}
    for _ in range(2):  # a second attempt begins the same job
        held(job, sites(), tmp_path, resume=True)
    (line,) = lines(tmp_path)
    assert (line["party"], line["count"], line["noise_multiplier"]) == ("a", 3, 2.0)
    rows = statement(LedgerAccount(Ledger(tmp_path / "at" / "a" / "ledger.jsonl")))
    spent = {row.adversaries: row.spent.pld for row in rows}
    assert spent["clients", "model"] == pytest.approx(exact_epsilon(3 / 4, 1e-5))
    # Against a server that sees who takes part, a user is replaced: twice the distance, four times its square.
    assert spent["server",] == pytest.approx(exact_epsilon(4 * 3 / 4, 1e-5))


def test_a_site_that_demands_privacy_refuses_a_job_before_it_begins(tmp_path: Path) -> None:
    demand = SitePolicy(privacy=Demand(budget=Budget(epsilon=1.0, method="pld")))
    with pytest.raises(
        PolicyError, match=r"updates of a training without noise, and this party demands .*privacy of [ab]"
    ):
        held(JOB, sites(demand), tmp_path / "plain")
    with pytest.raises(PolicyError, match=r"may make the epsilon of [ab] .*its budget is 1 at delta=1e-05"):
        held({**JOB, "uplink": NOISE, "evaluation": {"server": False}}, sites(demand), tmp_path / "dear")
    assert not lines(tmp_path / "dear")
    quiet = [NOISE[0], {"name": "GaussianNoise", "multiplier": 16.0}]
    held({**JOB, "uplink": quiet, "evaluation": {"server": False}}, sites(demand), tmp_path / "fits")
    assert len(lines(tmp_path / "fits")) == 3


PRIVATE: dict[str, dict[str, Any]] = {
    "examples": {"algorithm": {"name": "FedAvg", "batch_size": 10}, "privacy": {"name": "ExampleDP", "noise": 1.5, "delta": 1e-5, "clip": 1.0}},
    "examples under masks": {
        "algorithm": {"name": "FedAvg", "batch_size": 10}, "reducer": "SecureAggregation",
        "privacy": {"name": "ExampleDP", "noise": 1.5, "delta": 1e-5, "clip": 1.0},
    },
    "shared noise under masks": {
        "privacy": {"name": "DistributedDP", "noise": 2.0, "delta": 1e-5, "clip": 1.0, "least": 2}, "reducer": "SecureAggregation",
        "pacing": {"name": "Synchronous", "quorum": 2},
    },
    "shared noise under encryption": {
        "privacy": {"name": "DistributedDP", "noise": 2.0, "delta": 1e-5, "clip": 1.0, "least": 2, "bits": 16}, "reducer": "Encrypted",
        "pacing": {"name": "Synchronous", "quorum": 2}, "helpers": {"key-holder": "key-holder"},
    },
}  # fmt: skip


@pytest.mark.every(2)
@pytest.mark.parametrize("name", PRIVATE)
def test_what_sites_spend_is_in_their_own_ledgers_and_in_the_servers(name: str, tmp_path: Path) -> None:
    """Line by line, also where a reducer's half wraps the training; and the row says what both ledgers cost."""
    job, loads = {**JOB, "rounds": 2, "evaluation": {"server": False}, **PRIVATE[name]}, sites()
    homes = dict.fromkeys(job.get("helpers", {}), "keys")
    if homes:
        loads["keys"] = lambda: load_site_data({}, "keys", "key-holder")
    result = held(job, loads, tmp_path, helpers=homes)
    server = released(Ledger(tmp_path / "server" / "checkpoints" / "ledger.jsonl", readable=True))
    assert len(server) == 4
    for site in ("a", "b"):
        own = released(Ledger(tmp_path / "at" / site / "ledger.jsonl", readable=True))
        assert own == [line for line in server if line["party"] == site]
    told = RunFolder(tmp_path / "server").metrics()[-1]["epsilon"]
    training, clients = parse_job(job).made(), islands_of(PARTS)
    assert result["status"] == "finished"
    assert told == pytest.approx(training.installed(clients, training.learner(clients)).claim.epsilon, rel=1e-3)


def released(ledger: Ledger) -> list[dict[str, Any]]:
    """Lines that say what noise was added, in order, without the chain."""
    plain = [{k: v for k, v in line.items() if k not in ("job", "chain", "hash")} for line in ledger]
    return sorted((line for line in plain if line["kind"] in ("gaussian", "skellam")), key=repr)
