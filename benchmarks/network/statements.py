"""Measures statements and shared sorts between sites that run as processes of their own, over mutual TLS: what an analyst waits for, and what of it is the query itself.

    python benchmarks/network/statements.py                           # a masked sum of three sites, the 16 nearest of ten owners, and a sort of 100,000 shared rows
    python benchmarks/network/statements.py --works sum --runs 5

Real daemons and job processes; the analyst asks with a kit, as `atoll sql --kit` does, and each statement is a job. `asked` is from the text to the rows, with the start of a job's processes; `query` is from the moment when all of them are
connected to the answer, and `start` the rest. Between statements all processes come to rest, as they do while a person
reads an answer, so those of the next one are ready. `processor` is that of the job's processes and of the daemons. Sites tell each other directly. `goal` is the most that `query` may be on idle cores; `sort` times itself, without what comes before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from sessions import MARK  # noqa: E402 # beside this file

SIDE = 200_000
GOALS = {"sum": 0.15, "knn": 1.0, "sort": 6.0}
SITES = {"sum": 3, "knn": 10, "sort": 3}
RULES = {
    "sum": "tables: {pay: {columns: {amount: {level: private, release: aggregate}}}}",
    "knn": f"tables: {{cabs: {{columns: protected, points: {{place: {{x: x, y: y, extent: {SIDE}, precision: 1}}}}}}}}",
}
SORT = """
import tables


async def play(fed, sites, rows):
    roles = {me: (site, tables.play.with_args(me=me, work="sort", n=rows)) for me, site in zip(tables.PARTIES, sites, strict=True)}
    found = await fed.session(roles)
    return {"seconds": max(one["wall"] for one in found.values())}


play.tasks = [tables.play]
"""
"""A program of three sites that sort as `benchmarks/tables.py` does."""


class Clock:
    """Processor seconds of all processes that have a mark in their environment, of those that have ended too, as they were when last looked at.

    Args:
        mark: the mark.
    """

    def __init__(self, mark: str) -> None:
        self._mark = f"{MARK}={mark}".encode()
        self._spent: dict[int, float] = {}
        self._ours: dict[int, bool] = {os.getpid(): False}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        ticks = os.sysconf("SC_CLK_TCK")
        while not self._end.wait(0.05):
            for entry in Path("/proc").glob("[0-9]*"):
                pid = int(entry.name)
                try:
                    if pid not in self._ours:
                        self._ours[pid] = self._mark in (entry / "environ").read_bytes()
                    if self._ours[pid]:
                        fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                        self._spent[pid] = (int(fields[11]) + int(fields[12])) / ticks
                except OSError:
                    continue

    def seconds(self) -> float:
        """Processor seconds until now."""
        return sum(list(self._spent.values()))

    async def settle(self) -> None:
        """Wait until these processes rest: those that become ready for the next statement have loaded what it needs."""
        before, now = -1.0, self.seconds()
        while now - before > 0.03:
            await asyncio.sleep(1)
            before, now = now, self.seconds()

    def stop(self) -> None:
        """Stop looking."""
        self._end.set()
        self._thread.join()


def write_sites(folder: Path, work: str, rows: int) -> dict[str, list[str]]:
    """The data of each site: a policy with a file of DuckDB, or for a sort a file that is not looked at."""
    import duckdb

    made = {}
    for number in range(SITES[work]):
        rng, path = np.random.default_rng(number), folder / f"s{number}.duckdb"
        if work == "sort":
            np.savez(folder / "rows.npz", x=np.zeros((2, 1)), y=np.zeros(2))
            made[f"s{number}"] = [str(folder / "rows.npz")]
            continue
        with duckdb.connect(str(path)) as db:
            if work == "sum":
                db.execute("CREATE TABLE pay AS SELECT unnest($1) AS amount", [rng.integers(0, 10_000, 100).tolist()])
            else:
                x, y = rng.integers(0, SIDE, (2, rows))
                db.execute(f"CREATE TABLE cabs AS SELECT CAST({number * rows} + row_number() OVER () AS BIGINT) AS id, x, y FROM (SELECT unnest($1) AS x, unnest($2) AS y)", [x.tolist(), y.tolist()])  # fmt: skip
        (folder / f"s{number}.yaml").write_text(f"database: {path}\npolicy: {{min_count: 1}}\n{RULES[work]}\n")
        made[f"s{number}"] = [str(folder / f"s{number}.yaml")]
    return made


def write_job(folder: Path, work: str, run: int, rows: int) -> None:
    """One statement, at another place each time; or the sort."""
    folder.mkdir()
    if work == "sort":
        (folder / "code").mkdir()
        shutil.copy(HERE.parent / "tables.py", folder / "code")
        (folder / "code" / "sorted_rows.py").write_text(SORT)
        names = [f"s{number}" for number in range(SITES[work])]
        said: dict[str, Any] = {"job": "program", "program": "sorted_rows:play", "source": "code", "sites": names, "arguments": {"sites": names, "rows": rows}}  # fmt: skip
    else:
        x, y = np.random.default_rng(run).integers(0, SIDE, 2)
        text, strategy = ("SELECT sum(amount) FROM pay", "sums") if work == "sum" else (f"SELECT id FROM cabs WHERE kNN(POINT({x}, {y}), place, 16)", "hufu")  # fmt: skip
        said = {"name": "sql", "job": "query", "sql": text, "strategy": strategy}
    (folder / "job.yaml").write_text(json.dumps({**said, "direct": True}))


async def ask(admin: Any, folder: Path, clock: Clock) -> dict[str, float]:
    """One job, as the shell asks it."""
    begin, before = time.perf_counter(), clock.seconds()
    job = (await admin.submit(folder))["job"]
    await admin.finish(job)
    await admin.result(job, folder / "result")
    asked = time.perf_counter() - begin
    told = json.loads((folder / "result" / "manifest.json").read_text())
    rows = (folder / "result" / "metrics.jsonl").read_text().splitlines() if "columns" in told["result"] else []
    seconds = json.loads(rows[-1])["clock"] if rows else told["result"]["seconds"]
    kilobytes = (told["bytes"]["bytes_relayed"] + told["bytes"]["bytes_between"]) / 1000
    return {"asked": asked, "query": seconds, "start": asked - seconds, "processor": clock.seconds() - before, "kilobytes": kilobytes}  # fmt: skip


async def measure(work: str, rows: int, runs: int) -> dict[str, float]:
    """Medians of some statements of one deployment; the first is not counted."""
    from atoll.runtime.admin import Admin
    from atoll.runtime.poc import Poc

    mark = uuid.uuid4().hex
    os.environ[MARK] = mark
    clock, found = Clock(mark), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = write_sites(folder, work, rows)
        async with (
            Poc(folder / "project", data, direct=True) as poc,
            Admin(poc.kit("admin" if work == "sort" else "analyst"), poc.address) as admin,
        ):
            for run in range(runs + 1):
                write_job(folder / f"job{run}", work, run, rows)
                await clock.settle()
                one = await ask(admin, folder / f"job{run}", clock)
                found += [one] if run or not runs else []
    clock.stop()
    return {name: round(statistics.median(one[name] for one in found), 3) for name in found[0]}


def main() -> None:
    """Print a line of JSON for each work."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--works", default=",".join(GOALS))
    parser.add_argument("--rows", type=int, default=100_000, help="points of each owner, and rows of the sort")
    parser.add_argument("--runs", type=int, default=3, help="statements beside the first; 0 for the first alone")
    args = parser.parse_args()
    for work in args.works.split(","):
        row = {"work": work, "sites": SITES[work], "load": round(os.getloadavg()[0], 1)}
        print(json.dumps(row | asyncio.run(measure(work, args.rows, args.runs)) | {"goal": GOALS[work]}), flush=True)


if __name__ == "__main__":
    main()
