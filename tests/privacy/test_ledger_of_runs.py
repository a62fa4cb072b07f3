"""One ledger of many runs: trainings, sweeps and statistics spend from it, budgets count it whole, and it says what left without noise."""

from __future__ import annotations

import json

import numpy as np
import pytest

import atoll
from atoll.aggregation import EqualWeights
from atoll.core.errors import CheckpointError, PolicyError
from atoll.core.event import Gaussian, Ledger
from atoll.core.requests.policy import SitePolicy
from atoll.data import Dataset, Islands
from atoll.mechanisms import CentralDP
from atoll.privacy import Budget, Demand, LedgerAccount, statement
from atoll.stages import Clip, GaussianNoise
from atoll.statistics import Statistics


def islands(clients: int = 3) -> Islands:
    rng = np.random.default_rng(1)
    return Islands.from_datasets(
        {f"c{i}": Dataset({"x": rng.normal(size=(12, 4)), "y": rng.integers(0, 2, 12)}) for i in range(clients)}
    )


def training(multiplier: float | None = 4.0, rounds: int = 2, **more) -> atoll.Training:
    noise = [] if multiplier is None else [Clip(1.0), GaussianNoise(multiplier)]
    parts = {"evaluation": atoll.Evaluation(server=False), "selection": atoll.selection.Everyone(), **more}
    return atoll.Training(model=atoll.models.linear(4, 2), uplink=noise, rounds=rounds, **parts)


def spent(path, party="c0") -> dict[str, float]:
    """Job, without its random end -> epsilon, of one party."""
    rows = [row for row in statement(LedgerAccount(Ledger(path, readable=True))) if row.party == party]
    return {job.rpartition("-")[0]: cost.best for job, cost in rows[0].jobs.items()}


def test_runs_that_share_a_ledger_add_up(tmp_path):
    path = tmp_path / "ledger.jsonl"
    for name, rounds in (("one", 2), ("two", 3)):
        atoll.simulate(training(rounds=rounds), islands(), ledger=path, folder=tmp_path / name)
    alone = {"one": 2, "two": 3}
    found = spent(path)
    assert found == pytest.approx({n: atoll.privacy.exact_epsilon(r / 4, 1e-5) for n, r in alone.items()})
    server, others = [row for row in statement(LedgerAccount(Ledger(path))) if row.party == "c0"]
    assert server.spent.pld == pytest.approx(atoll.privacy.exact_epsilon(5 / 4, 1e-5))
    assert (server.adversaries, server.neighbours) == (("server",), "replace-one")  # it sees who takes part
    assert others.spent.pld == pytest.approx(atoll.privacy.exact_epsilon(5 / 16, 1e-5))
    assert (others.adversaries, others.neighbours) == (("clients", "model"), "add-remove")
    assert not (tmp_path / "one" / "checkpoints" / "ledger.jsonl").exists()


def test_a_budget_counts_what_other_runs_have_spent(tmp_path):
    path, budget = tmp_path / "ledger.jsonl", Budget(epsilon=atoll.privacy.exact_epsilon(4 / 4, 1e-5))
    atoll.simulate(training(rounds=3), islands(), ledger=path)
    with pytest.raises(PolicyError, match="2 rounds exceed the privacy budget, and 1 fit"):
        atoll.simulate(training(rounds=2, budget=budget), islands(), ledger=path)
    made = atoll.simulate(training(rounds=1, budget=budget), islands(), ledger=path)
    assert len(made.metrics) == 1
    with pytest.raises(PolicyError, match="another release would make it"):
        atoll.simulate(training(rounds=1, budget=budget), islands(), ledger=path)


def test_a_resumed_run_is_the_same_job_and_keeps_its_ledger(tmp_path):
    path, folder = tmp_path / "ledger.jsonl", tmp_path / "run"

    def stop(row):
        if row.get("round") == 2:
            raise KeyboardInterrupt("now")

    with pytest.raises(KeyboardInterrupt, match="now"):
        atoll.simulate(training(rounds=4), islands(), ledger=path, folder=folder, on_record=stop)
    with pytest.raises(CheckpointError, match=r"spends from the ledger .*ledger\.jsonl, not from one of its own"):
        atoll.simulate(training(rounds=4), islands(), folder=folder, resume=True)
    atoll.simulate(training(rounds=4), islands(), ledger=path, folder=folder, resume=True)
    ledger = Ledger(path)
    assert len({line["job"] for line in ledger}) == 1
    assert sum(line["kind"] == Gaussian.kind for line in ledger) == 4 * 3


@pytest.mark.network
def test_a_sweep_spends_from_one_ledger(tmp_path):
    path = tmp_path / "ledger.jsonl"
    atoll.sweep(
        training(), islands(), over={"algorithm.lr": [0.1, 0.2]}, seeds=2, folder=tmp_path / "sweep", ledger=path, parallel=2
    )  # fmt: skip
    assert len(spent(path)) == 4
    row, _ = [row for row in statement(LedgerAccount(Ledger(path))) if row.party == "c1"]
    assert row.spent.pld == pytest.approx(atoll.privacy.exact_epsilon(8 / 4, 1e-5))


@pytest.mark.parametrize("engine", ["inline", "batched"])
def test_what_leaves_without_noise_is_in_a_shared_ledger_once_a_task(tmp_path, engine):
    path = tmp_path / "ledger.jsonl"
    atoll.simulate(Statistics(bins=3), islands(), ledger=path, engine=engine)
    plain = training(None, evaluation=atoll.Evaluation(clients=-1))
    atoll.simulate(plain, islands(), ledger=path, engine=engine)
    (row, *_) = statement(LedgerAccount(Ledger(path)))
    assert row.spent.best == float("inf")
    names = [name.rpartition(":")[2].rpartition(".")[2] for name in row.unprotected]
    assert names[:2] == ["described", "binned"]
    assert len(names) == 4  # and the training's updates, and its measures
    assert len(Ledger(path)) == 3 * 4


def test_a_run_of_its_own_ledger_notes_no_release_without_noise(tmp_path):
    atoll.simulate(Statistics(), islands(), folder=tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints" / "ledger.jsonl").exists()


def demanding(**budget) -> SitePolicy:
    return SitePolicy(privacy=Demand(budget=Budget(**budget) if budget else None))


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (training(None), "Training .* has updates of a training without noise"),
        (
            training(None, privacy=CentralDP(noise=1.0, delta=1e-5, clip=1.0, adversary="model")),
            "Training .* has updates that reach the server without noise",
        ),
        (Statistics(), "Statistics has statistics of columns without noise"),
    ],
)
def test_a_demanding_island_refuses_a_job_without_privacy(job, why):
    with pytest.raises(PolicyError, match=rf"{why}.*privacy of c1.*Remedy: use a mechanism"):
        atoll.simulate(job, islands(), policy={"c1": demanding()})


@pytest.mark.parametrize(("adversary", "admitted"), [("server", False), ("model", True)])
def test_noise_that_needs_trust_in_the_server_is_no_protection_from_it(adversary, admitted):
    job = training(None, aggregation=EqualWeights()).replace(uplink=[Clip(1.0), GaussianNoise(4.0, trusted=True)])
    policy = demanding(epsilon=9.0, adversary=adversary)
    if admitted:
        atoll.simulate(job, islands(), policy=policy)
    else:
        with pytest.raises(PolicyError, match="has updates that only the others' trust protects without noise"):
            atoll.simulate(job, islands(), policy=policy)


def test_a_program_that_does_not_say_what_it_releases_is_refused():
    async def program(fed):
        return None

    with pytest.raises(PolicyError, match=r"does not say what it releases.*attribute `releases`"):
        atoll.simulate(program, islands(), policy=demanding())
    program.releases = []
    atoll.simulate(program, islands(), policy=demanding())


@atoll.task
def count(island, message):
    """Replies without noise."""
    return len(island.data)


@atoll.task
def noisy(island, message):
    """Says that it adds noise, for the unit that it is asked for."""
    island.spend(Gaussian(noise_multiplier=message["noise"], unit=message["unit"]))
    return 1.0


@pytest.mark.parametrize(
    ("task", "message", "why"),
    [
        (count, None, "the reply of task .*count leaves without noise"),
        (noisy, {"noise": 1.0, "unit": "example"}, "protects unit 'example' only"),
    ],
)
@pytest.mark.parametrize("engine", ["inline", "batched"])
def test_a_reply_without_privacy_does_not_leave_whatever_the_program_said(task, message, why, engine):
    async def program(fed):
        return await fed.ask_all(fed.parties, task, message)

    program.releases = [Gaussian(noise_multiplier=1.0)]
    with pytest.raises(PolicyError, match=why):
        atoll.simulate(program, islands(), policy=demanding(), engine=engine)


def test_a_program_that_spends_more_than_it_said_stops_at_the_budget(tmp_path):
    async def program(fed):
        for number in range(9):
            await fed.ask_all(fed.parties, noisy, {"noise": 2.0, "unit": "user"}, at=number)
            fed.record({"done": number})

    program.releases = [Gaussian(noise_multiplier=2.0)]
    limit = atoll.privacy.exact_epsilon(4 / 4, 1e-5)
    rows = []
    with pytest.raises(
        PolicyError, match=rf"another release would make the epsilon of c0 .* its budget is {limit:.4g}"
    ):
        atoll.simulate(
            program, islands(), policy=demanding(epsilon=limit), engine="inline", on_record=rows.append, folder=tmp_path
        )
    assert len(rows) == 4


def test_a_job_that_may_exceed_the_rest_of_a_budget_is_refused_before_it_begins(tmp_path):
    path, limit = tmp_path / "ledger.jsonl", atoll.privacy.exact_epsilon(5 / 4, 1e-5)
    policy = demanding(epsilon=limit)
    atoll.simulate(training(rounds=3), islands(), ledger=path, policy=policy)
    before = len(Ledger(path))
    with pytest.raises(PolicyError, match=r"may make the epsilon of c0 .*is spent or promised to other jobs"):
        atoll.simulate(training(rounds=3), islands(), ledger=path, policy=policy)
    assert len(Ledger(path)) == before
    atoll.simulate(training(rounds=2), islands(), ledger=path, policy=policy)
    (row, *_) = statement(LedgerAccount(Ledger(path)))
    assert row.budget == limit
    assert row.left == pytest.approx(0.0, abs=1e-6)
    assert len(row.jobs) == 2


def test_what_an_open_job_was_admitted_for_is_set_aside_until_it_ends(tmp_path):
    ledger, budget = Ledger(tmp_path / "ledger.jsonl"), Budget(epsilon=4.0, method="pld")
    allowance = atoll.privacy.LedgerGuard(ledger, lambda party: Demand(budget=budget))
    large, small = Gaussian(noise_multiplier=2.0, count=3), Gaussian(noise_multiplier=2.0, count=2)
    allowance.admit("first", "first", {"a": [large]})
    ledger.append(Gaussian(noise_multiplier=2.0), "a", "r#0", job="first")
    with pytest.raises(PolicyError, match="spent or promised to other jobs"):
        allowance.admit("second", "second", {"a": [small]})
    again = Ledger(tmp_path / "ledger.jsonl")  # after a crash nothing of this is forgotten
    allowance = atoll.privacy.LedgerGuard(again, lambda party: Demand(budget=budget))
    with pytest.raises(PolicyError, match="spent or promised to other jobs"):
        allowance.admit("second", "second", {"a": [small]})
    allowance.close("first")
    allowance.admit("second", "second", {"a": [small]})
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert kinds == ["admitted", "gaussian", "closed", "admitted"]
