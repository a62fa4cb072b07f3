"""Sites that demand privacy: their own ledgers decide, agree with the server's, and no ``kill -9`` changes them.

Two sites and one kill by default; five sites, and kills of everybody in every step, with ``make thorough``.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from atoll.cli.app import run
from atoll.core.event import Gaussian, Ledger
from atoll.privacy import LedgerAccount, exact_epsilon, statement
from atoll.runs import yaml
from tests.support.failing_world import World, ended, error_of, until, write_job

STEPS = ("before", "spent", "replied")
"""Where somebody dies: before the party spends, after it has spent and before it replies, after the server has the sum."""
VICTIMS = ("job at site", "site", "job at server", "server")

# A program whose steps stop where a file arms a gate, and say that they have come there.
PROGRAM = """
import threading
from pathlib import Path

import numpy as np

import atoll
from atoll.core.event import Gaussian


def gate(message, step):
    armed = Path(message["gates"]) / f"{message['round']}-{step}.armed"
    if armed.exists():
        armed.with_suffix(".reached").touch()
        while armed.exists():
            threading.Event().wait(0.01)


@atoll.task
def noisy(island, message):
    last = island.name == message["last"]
    if last:
        gate(message, "before")
    island.spend(Gaussian(noise_multiplier=message["noise"]))
    value = island.secret.generator().normal(size=2)
    if last:
        gate(message, "spent")
    return {"sum": atoll.Sum(value)}


class Walk:
    def __init__(self, rounds, gates="", noise=4.0, last="", said=None):
        self.rounds, self.gates, self.noise, self.last = rounds, gates, noise, last
        self.releases = [Gaussian(noise_multiplier=noise, count=said or rounds)]

    async def __call__(self, fed):
        state = await fed.restore({"round": 0, "saw": []})
        while state["round"] < self.rounds:
            message = {"round": state["round"], "gates": self.gates, "noise": self.noise, "last": self.last}
            total = await fed.sum(fed.parties, noisy, message, at=state["round"])
            gate(message, "replied")
            state = {"round": state["round"] + 1, "saw": [*state["saw"], float(total["sum"][0])]}
            fed.record({"round": state["round"]})
            await fed.checkpoint(state)
        return {"x": np.array(state["saw"])}
"""


class Demanding(World):
    """A project whose sites demand privacy of every user, and have a budget."""

    epsilon = 4.0

    def _rows(self, number: int, name: str) -> Path:
        rows = super()._rows(number, name)
        privacy = {"require": True, "unit": "user", "epsilon": self.epsilon, "delta": 1e-5}
        file = rows.with_name("site.yaml")
        file.write_text(yaml.dump({"path": str(rows), "policy": {"privacy": privacy}}), encoding="utf-8")
        return file

    def of_site(self, name: str) -> Ledger:
        """What a site says that was spent of it."""
        return Ledger(self.place(name) / "ledger.jsonl", readable=True)

    def at_server(self, job: str) -> Ledger:
        """What the server says that a job has spent."""
        return Ledger(self.place("server") / "jobs" / job / "state" / "checkpoints" / "ledger.jsonl", readable=True)


def walking(folder: Path, sites: tuple[str, ...], **arguments: Any) -> Path:
    settings = {"program": "failing_job:Walk", "arguments": {"last": sites[-1], **arguments}, "sites": list(sites)}
    return write_job(folder, PROGRAM, **settings)


def releases(ledger: Ledger, job: str = "") -> list[tuple[Any, ...]]:
    """What a ledger says of a job: party, request, kind and noise, in order."""
    lines = [line for line in ledger if not job or line.get("job") == job]
    return sorted(
        (line["party"], line["request"], line["kind"], line["noise_multiplier"], line["count"])
        for line in lines
        if line["kind"] == Gaussian.kind
    )


async def killed(here: World, victim: str, last: str) -> None:
    """Kill somebody, and let the person who watches over fronts start one again."""
    name = last if "site" in victim else "server"
    if victim.startswith("job"):
        process = here.job_process(name)
        assert process is not None
        os.kill(process, signal.SIGKILL)
        await until(f"end of {process}", lambda: process not in here.fronts[name].jobs())
    else:
        await here.fronts[name].end()
        await here.start(name)


async def refused(here: World, admin: Any, job: Path) -> str:
    """The error of a job that does not begin; nobody has spent anything on it."""
    found = await ended(admin, (await admin.submit(job))["job"])
    assert found["state"] == "failed", found
    assert not any(releases(here.of_site(site), found["job"]) for site in here.sites)
    return error_of(found)


async def agreed(here: World, job: str, rounds: int, noise: float) -> None:
    """Each site has spent one release a round, the server says the same, and both count alike."""
    server = releases(here.at_server(job))
    for site in here.sites:
        own = releases(here.of_site(site), job)
        assert len(own) == len({request for _, request, *_ in own}) == rounds
        assert own == [line for line in server if line[0] == site]
        (row,) = statement(LedgerAccount(here.of_site(site)))
        assert row.jobs[job].pld == pytest.approx(exact_epsilon(rounds / noise**2, 1e-5))
        assert row.left == pytest.approx(here.epsilon - row.spent.pld)
        kit, place = here.folder / "kits" / site, here.place(site)
        assert run(["privacy", "ledger", str(kit), "--folder", str(place), "--head", here.of_site(site).head]) == 0
    rows = statement(LedgerAccount(here.at_server(job)))
    assert {row.party: row.spent.pld for row in rows} == {
        site: pytest.approx(exact_epsilon(rounds / noise**2, 1e-5)) for site in here.sites
    }


async def play(folder: Path, sites: tuple[str, ...], kills: list[tuple[str, str]], refusals: bool = True) -> None:
    gates, rounds = folder / "gates", len(kills) + 1
    gates.mkdir(parents=True)
    async with Demanding(folder / "project", sites) as here:
        admin = await here.admin()
        noise = 4.0 * rounds**0.5
        if refusals:
            plain = write_job(
                folder / "plain", rounds=1, model={"name": "linear", "features": 6, "outputs": 3}, sites=list(sites)
            )  # fmt: skip
            assert (
                "updates of a training without noise, and this party demands differential privacy of unit 'user'"
                in (await refused(here, admin, plain))
            )
        for number, (step, _) in enumerate(kills):
            (gates / f"{number}-{step}.armed").touch()
        job = (await admin.submit(walking(folder / "walk", sites, rounds=rounds, noise=noise, gates=str(gates))))["job"]
        for number, (step, victim) in enumerate(kills):
            armed = gates / f"{number}-{step}.armed"
            await until(f"{step} of round {number}", armed.with_suffix(".reached").exists)
            await killed(here, victim, sites[-1])
            armed.unlink()
        found = await ended(admin, job)
        assert found["state"] == "finished", found
        await agreed(here, job, rounds, noise)
        big = walking(folder / "big", sites, rounds=1, noise=0.5)
        if refusals:
            error = await refused(here, admin, big)
            assert "may make the epsilon of" in error
            assert f"its budget is {here.epsilon:g} at delta=1e-05" in error


@pytest.mark.slow
def test_a_site_killed_after_it_has_spent_changes_no_ledger(tmp_path: Path) -> None:
    asyncio.run(play(tmp_path, ("site-1", "site-2"), [("spent", "job at site")]))


@pytest.mark.slow
def test_kills_in_every_step_change_no_ledger_of_five_sites(tmp_path: Path) -> None:
    kills = [(step, victim) for step in STEPS for victim in VICTIMS]
    asyncio.run(play(tmp_path, tuple(f"site-{i}" for i in range(1, 6)), kills))


@pytest.mark.slow
def test_a_program_that_spends_more_than_it_said_is_stopped_by_the_sites_ledger(tmp_path: Path) -> None:
    async def body() -> None:
        sites = ("site-1", "site-2")
        async with Demanding(tmp_path / "project", sites) as here:
            admin = await here.admin()
            job = walking(tmp_path / "liar", sites, rounds=9, noise=2.0, said=1)
            found = await ended(admin, (await admin.submit(job))["job"])
            assert found["state"] == "failed", found
            assert "another release would make the epsilon of" in error_of(found)
            for site in sites:
                (row,) = statement(LedgerAccount(here.of_site(site)))
                assert row.spent.pld <= here.epsilon
                assert row.releases >= 3

    asyncio.run(body())
