"""Trajectories between organisations, each a process with a file of its own: the answers are those of one process, and what rests on one mover is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import atoll.query
from atoll.core.errors import AtollError
from atoll.query.connection import JobConnection
from atoll.runtime.admin import Admin
from atoll.runtime.poc import Poc

pytestmark = pytest.mark.network

COORDINATE = "{level: %s, release: aggregate}"
POLICY = """policy: {min_count: %d}
tables:
  pings: {unit: taxi, points: {place: {x: lon, y: lat, extent: 20, precision: 0.001}}, columns: {taxi: {level: protected, join: local}, seen: protected, lon: %s, lat: %s}}
  stops: {mode: replicated, points: {place: {x: lon, y: lat, extent: 20, precision: 0.001}}, columns: public}
"""
SITES = ("north", "south", "west")
STRICT = [
    "SELECT count(*), sum(seconds), sum(distance), avg(speed) FROM Steps(pings, taxi, seen, place)",
    "SELECT count(*), sum(length), sum(points) FROM Trips(pings, taxi, seen, DistanceSphere(place), 100)",
    "SELECT count(*), avg(x), avg(y), sum(seconds) FROM Stays(pings, taxi, seen, place, 2.5, 100)",
    "SELECT count(DISTINCT taxi) FROM Meetings(pings, stops, seen, place, 3, 60)",
]
OPEN = "SELECT a.taxi, b.taxi, count(*), min(a.seen) FROM Meetings(pings AS a, pings AS b, seen, place, 0.5, 20) WHERE a.taxi < b.taxi GROUP BY a.taxi, b.taxi ORDER BY a.taxi, b.taxi"


def write_sites(folder: Path, least: int, level: str) -> tuple[dict[str, str], str]:
    """Twelve taxis at each site, of which taxi 4 alone pauses for so long that two gaps tell it apart; and two stops that all sites have."""
    policy = POLICY % (least, COORDINATE % level, COORDINATE % level)
    for k, name in enumerate(SITES):
        (folder / name).mkdir()
        rows = [(taxi, 60 * j + 300 * (j > 4) + 130 * (taxi == 4 and j > 1), (taxi % 7 + 2 * j) % 9 / 2, taxi / 9) for taxi in range(k, 36, 3) for j in range(8)]  # fmt: skip
        (folder / name / "pings.csv").write_text("taxi,seen,lon,lat\n" + "".join(f"{a},{b},{x},{y}\n" for a, b, x, y in rows))  # fmt: skip
        (folder / name / "stops.csv").write_text("stop,seen,lon,lat\n1,60,2.0,2.0\n2,120,2.5,0.5\n")
        (folder / f"{name}.yaml").write_text(f"path: {folder}/{name}\n{policy}")
    (folder / "p.yaml").write_text(policy)
    return {name: str(folder / name) for name in SITES}, str(folder / "p.yaml")


def ask_sites(folder: Path, texts: list[str]) -> list[Any]:
    """The answers, or errors, of processes at the sites; each statement is a job."""
    data = {name: [str(folder / f"{name}.yaml")] for name in SITES}

    def ask(db: JobConnection) -> list[Any]:
        found: list[Any] = []
        for text in texts:
            try:
                found.append(db.sql(text))
            except AtollError as error:
                found.append(error)
        return found

    async def play() -> list[Any]:
        loop = asyncio.get_running_loop()
        async with Poc(folder / "trial", data) as poc, Admin(poc.kit("analyst"), poc.address) as anna:
            db = JobConnection(lambda body: asyncio.run_coroutine_threadsafe(body(anna), loop).result(), "project")
            return await asyncio.to_thread(ask, db)

    return asyncio.run(play())


def test_processes_answer_trajectories_as_one_process_does(tmp_path: Path) -> None:
    """Four answers, and then two gaps between which taxi 4 alone pauses: the site that has it refuses the second."""
    silos, policy = write_sites(tmp_path, 5, "private")
    found = ask_sites(tmp_path, [*STRICT, STRICT[1].replace("100", "250"), STRICT[1]])
    with atoll.query.connect(silos=silos, policy=policy) as db:
        for text, one in zip([*STRICT, STRICT[1]], [*found[:4], found[5]], strict=True):
            here = db.sql(text)
            assert one.rows[0] == pytest.approx(here.rows[0]), text  # the last digit depends on the order of rows
            assert one.withheld_groups == 0
            assert db.check(here)
    assert found[0].rows[0][0] == 36 * 7
    assert found[3].rows[0][0] > 5
    assert isinstance(found[4], AtollError)
    assert "1 were rejected: refused by its policy: this party does not answer" in str(found[4])  # its log says why


def test_processes_find_meetings_under_shares(tmp_path: Path) -> None:
    silos, policy = write_sites(tmp_path, 1, "protected")
    (found,) = ask_sites(tmp_path, [OPEN])
    with atoll.query.connect(silos=silos, policy=policy) as db:
        here = db.sql(OPEN)
        assert db.check(here)
    assert (found.strategy, found.rows) == ("hufu", here.rows)
    assert len(found.rows) > 1
