"""Measures spatial statements over the tables of several sites: seconds, comparisons, messages and bytes.

    python benchmarks/spatial.py                                     # 10 owners of 100,000 points, the 16 nearest; and counts of three sites
    python benchmarks/spatial.py --owners 2,4,6,8,10 --strategies hufu,hufu:bound=extent,hufu:comparison=masked,hufu:radii=3

Points are uniform on a square of 200 km in whole metres, the precision is 1 m, and every statement asks for another place, so nothing is known of it before. All sites are in this process: `seconds` are those
of the whole statement, from its text to the rows; `local` is DuckDB at the slowest site; `processor` is of all sites together. Bytes between sites count twice, up to the coordinator that relays them and down;
Hu-Fu (Tong et al. 2022, k 16, 10 companies, 1,029,081 points in all) sent 588 KB and 1,125 KB without its noise, in 100 ms and 117 ms on eleven machines.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

SIDE = 200_000
POLICY = {
    "policy": {"min_count": 1},
    "tables": {
        "cabs": {"columns": "protected", "points": {"place": {"x": "x", "y": "y", "extent": SIDE, "precision": 1}}}
    },
}


def make_sites(folder: Path, owners: int, rows: int) -> dict[str, str]:
    """A file of DuckDB for each owner."""
    import duckdb

    made = {}
    for owner in range(owners):
        path = folder / f"o{owner}.duckdb"
        rng = np.random.default_rng(owner)
        x, y = rng.integers(0, SIDE, (2, rows))
        with duckdb.connect(str(path)) as db:
            db.execute(f"CREATE TABLE cabs AS SELECT CAST({owner * rows} + row_number() OVER () AS BIGINT) AS id, x, y FROM (SELECT unnest($1) AS x, unnest($2) AS y)", [x.tolist(), y.tolist()])  # fmt: skip
        made[f"o{owner}"] = str(path)
    return made


def measure(db: Any, strategy: str, text: str, runs: int, seed: int = 0) -> dict[str, float]:
    """Medians over statements at random places; the first is not counted, because tables are opened in it."""
    rng = np.random.default_rng(seed)
    found = []
    for turn in range(runs + 1):
        x, y = rng.integers(0, SIDE, 2)
        began = time.process_time()
        result = db.sql(text.format(place=f"POINT({x}, {y})"), strategy=strategy)
        facts = result.facts()
        if turn:
            found.append({"seconds": facts["seconds"]["total"], "local": facts["seconds"]["local"], "processor": time.process_time() - began, "comparisons": facts["comparisons"],
                          "rounds": facts["rounds"], "kilobytes": result.bytes / 1000, "predicted": result.predicted / result.bytes})  # fmt: skip
    return {name: statistics.median(one[name] for one in found) for name in found[0]}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--owners", default="10")
    parser.add_argument("--rows", type=int, default=100_000, help="points of each owner")
    parser.add_argument("--k", type=int, default=16)
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--strategies", default="hufu,hufu:bound=extent,hufu:comparison=masked")
    args = parser.parse_args()
    from atoll.query import connect

    nearest = f"SELECT id FROM cabs WHERE kNN({{place}}, place, {args.k})"
    count = "SELECT count(*) FROM cabs WHERE DWithin(place, {place}, 5000)"
    print("| statement | owners | strategy | seconds | at most | local | processor s | comparisons | messages in a row | KB | at most | predicted |")  # fmt: skip
    print("|---|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    cases = [("kNN", nearest, int(n), s) for n in args.owners.split(",") for s in args.strategies.split(",") if int(n) > 2 or "masked" not in s]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for n in sorted({*(case[2] for case in cases), 3}):
            place = Path(folder) / str(n)
            place.mkdir()
            with connect(silos=make_sites(place, n, args.rows), policy=POLICY) as db:
                here = [case for case in cases if case[2] == n] + ([("count", count, 3, "hufu"), ("count", count, 3, "sums")] if n == 3 else [])  # fmt: skip
                for what, text, _, strategy in here:
                    one = measure(db, strategy, text, args.runs)
                    seconds, kilobytes = ("0.2", "588") if what == "kNN" and n == 10 and args.k == 16 else ("–", "–")
                    print(f"| {what} | {n} | `{strategy}` | {one['seconds']:.3f} | {seconds} | {one['local']:.3f} | {one['processor']:.3f} | {one['comparisons']:.0f} | {one['rounds']:.0f} | {one['kilobytes']:.0f} | {kilobytes} | {one['predicted']:.3f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
