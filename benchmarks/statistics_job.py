"""Measures federated statistics against DuckDB's pass over the rows of one site.

    python benchmarks/statistics_job.py                       # 10^7 rows x 20 columns at 4 sites
    python benchmarks/statistics_job.py --rows 1000000 --runs 3

Both describe the same columns, alternately in one run. DuckDB (its own environment, `benchmarks/peers/duckdb.txt`) computes count, missing, mean, population standard
deviation, skewness, smallest and largest value of every column of one site's table, which is in its memory; then the same with quartiles (`approx_quantile`). Atoll asks every site for
these in one contact and merges them; quartiles are those of a sketch. All sites share this machine's cores, so a federation's time here would be that of its sites one after the other. Between
organisations sites work at once: what counts is the slowest site's task, plus what coordination adds. The script reports

* ``site``: seconds of the task at the slowest site,
* ``coordination``: seconds of the whole run that no site's task took,
* ``ratio``: (site + coordination) / DuckDB's seconds at the same site.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import atoll
import numpy as np
from atoll.data import DataTable
from atoll.statistics import Statistics, described

from envs import ensure

_DUCK = """
import json, sys, time
import duckdb, numpy as np
path, threads, quantiles = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1"
with np.load(path) as found:
    columns = {name: found[name] for name in found.files}
con = duckdb.connect()
con.execute(f"set threads={threads}")
con.execute("set enable_progress_bar=false")
con.execute("create table t as select * from columns")
parts = [f"count({c}), count(*) - count({c}), avg({c}), stddev_pop({c}), skewness({c}), min({c}), max({c})" for c in columns]
parts += [f"approx_quantile({c}, [0.25, 0.5, 0.75])" for c in columns] if quantiles else []
query = "select " + ", ".join(parts) + " from t"
begin = time.perf_counter()
row = con.execute(query).fetchall()[0]
print(json.dumps({"seconds": time.perf_counter() - begin, "mean": row[2], "std": row[3]}))
"""


def duck(path: Path, threads: int, quantiles: bool) -> dict[str, float]:
    """DuckDB's seconds, and two of its numbers."""
    words = [str(ensure("duckdb")), "-c", _DUCK, str(path), str(threads), "1" if quantiles else "0"]
    found: dict[str, float] = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return found


def federated(sites: dict[str, DataTable], quantiles: bool) -> dict[str, Any]:
    """Atoll's seconds at the slowest site and beside the sites' tasks."""
    spent: list[float] = []
    plain = described.described.run

    def timed(island: Any, message: Any) -> Any:
        begin = time.perf_counter()
        try:
            return plain(island, message)
        finally:
            spent.append(time.perf_counter() - begin)

    object.__setattr__(described.described, "run", timed)
    try:
        job = Statistics(quantiles=[0.25, 0.5, 0.75] if quantiles else [])
        begin = time.perf_counter()
        found = atoll.simulate(job, sites, engine="inline", progress=False).outcome
        whole = time.perf_counter() - begin
    finally:
        object.__setattr__(described.described, "run", plain)
    first = next(iter(found.sites.values()))["c0"]
    return {"site": max(spent), "coordination": whole - sum(spent), "mean": first.mean, "std": first.std}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="threads of DuckDB; Atoll's task has one")
    args = parser.parse_args()
    draw = np.random.default_rng(0)
    sites = {
        f"site{s}": DataTable({f"c{c}": draw.normal(c, 2.0, args.rows // args.sites) for c in range(args.columns)})
        for s in range(args.sites)
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "site0.npz"
        np.savez(path, **{name: sites["site0"][name] for name in sites["site0"].columns})
        print(
            f"{args.rows:,} rows x {args.columns} columns at {args.sites} sites, median of {args.runs} runs, DuckDB with {args.threads} thread(s)"
        )
        for name, quantiles in (("moments", False), ("moments and quartiles", True)):
            rows = [(federated(sites, quantiles), duck(path, args.threads, quantiles)) for _ in range(args.runs)]
            for ours, theirs in rows:
                if abs(ours["mean"] - theirs["mean"]) > 1e-9 or abs(ours["std"] - theirs["std"]) > 1e-9:
                    raise SystemExit(f"the numbers differ: {ours} and {theirs}")
            site, beside = (statistics.median(ours[key] for ours, _ in rows) for key in ("site", "coordination"))
            peer = statistics.median(theirs["seconds"] for _, theirs in rows)
            print(
                f"{name:24} site {site:6.3f} s  coordination {beside:6.3f} s  DuckDB {peer:6.3f} s  ratio {(site + beside) / peer:5.2f}"
            )


if __name__ == "__main__":
    main()
