"""Measures TPC-H's Q1 and Q6 over three silos, next to DuckDB on all rows in one place.

    python benchmarks/queries.py                       # scale factor 1, medians of 9 runs in turn
    python benchmarks/queries.py --scale 0.1 --runs 3  # a quick look
    python benchmarks/queries.py --profile q1          # where a statement's time goes

`tpchgen-cli` makes the rows, in an environment of its own (`benchmarks/peers/tpch.txt`), as three parts of equal size; each is a file of DuckDB, and so is the union. Both sides keep their connection
open, as a shell does. Every run asks a statement with other constants, as TPC-H does, so that it is parsed and planned anew; `again` is the same text a second time. The silos are in this process, so
they answer one after another, each with all processors, as DuckDB has them for the union. Answers must be equal. `processor` is the processor seconds of all threads: on a busy machine it says more than
the clock. Results go to `benchmarks/results/queries.json` and `.md`.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import math
import os
import platform
import pstats
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from envs import HERE, ensure

SITES = ("north", "south", "west")
LIMITS = {"q1": 1.5, "q6": 2.5}
QUERIES = {
    "q1": """SELECT l_returnflag, l_linestatus, sum(l_quantity) AS sum_qty, sum(l_extendedprice) AS sum_base_price, sum(l_extendedprice * (1 - l_discount)) AS sum_disc_price,
        sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS sum_charge, avg(l_quantity) AS avg_qty, avg(l_extendedprice) AS avg_price, avg(l_discount) AS avg_disc, count(*) AS count_order
        FROM lineitem WHERE l_shipdate <= DATE '1998-09-02' GROUP BY l_returnflag, l_linestatus ORDER BY l_returnflag, l_linestatus""",
    "q6": """SELECT sum(l_extendedprice * l_discount) AS revenue FROM lineitem
        WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01' AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24""",
}


def make_silos(folder: Path, scale: float) -> dict[str, Path]:
    """Files of DuckDB with a third of `lineitem` each, and `union` with all of it; made once."""
    import duckdb

    files = {name: folder / f"{name}.duckdb" for name in (*SITES, "union")}
    if all(path.is_file() for path in files.values()):
        return files
    folder.mkdir(parents=True, exist_ok=True)
    made = ensure("tpch").parent / "tpchgen-cli"
    subprocess.run([made, "parquet", "-s", f"{scale:g}", "--tables=lineitem", f"--parts={len(SITES)}", f"--output-dir={folder}"], check=True, stdout=subprocess.DEVNULL)  # fmt: skip
    parts = [folder / "lineitem" / f"lineitem.{k}.parquet" for k in range(1, len(SITES) + 1)]
    for name, wanted in [*zip(SITES, [[part] for part in parts], strict=True), ("union", parts)]:
        files[name].unlink(missing_ok=True)
        with duckdb.connect(str(files[name])) as connection:
            connection.execute("CREATE TABLE lineitem AS SELECT * FROM read_parquet(?)", [[str(part) for part in wanted]])  # fmt: skip
    for part in parts:
        part.unlink()
    return files


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Seconds and processor seconds that something takes, and what it returns."""
    began, clock = time.perf_counter(), time.process_time()
    found = work()
    return time.perf_counter() - began, time.process_time() - clock, found


def measure(files: dict[str, Path], least: int, runs: int) -> dict[str, dict[str, Any]]:
    """Seconds of each statement, run by run, with both sides in turn."""
    import atoll.query
    import duckdb

    found: dict[str, dict[str, Any]] = {name: {key: [] for key in ("atoll", "again", "local", "duckdb", "atoll_processor", "duckdb_processor")} for name in QUERIES}  # fmt: skip
    with (
        duckdb.connect(str(files["union"]), read_only=True) as pooled,
        atoll.query.connect({name: str(files[name]) for name in SITES}, policy_of(least)) as db,
    ):
        for name, whole in QUERIES.items():
            for run in range(runs + 1):
                text = whole.replace("1998-09-02", f"1998-09-{2 + run:02d}").replace("< 24", f"< {24 + run}")
                pooled_seconds, pooled_processor, expected = timed(lambda text=text: pooled.execute(text).fetchall())
                seconds, processor, answer = timed(lambda text=text: db.sql(text))
                again, _, _ = timed(lambda text=text: db.sql(text))
                if not are_equal(answer.rows, expected):
                    raise SystemExit(f"{name}: {answer.rows} is not {expected}")
                row = {"atoll": seconds, "again": again, "local": answer.seconds["local"], "duckdb": pooled_seconds, "atoll_processor": processor, "duckdb_processor": pooled_processor}  # fmt: skip
                for key, value in row.items() if run else ():  # the first opens files
                    found[name][key].append(value)
    return found


def are_equal(rows: list[Any], others: list[Any]) -> bool:
    """Whether two answers are the same, with doubles to 1e-12 of their size: averages of decimals are rounded once here, and DuckDB's more often."""
    pairs = [pair for row, other in zip(rows, others, strict=True) for pair in zip(row, other, strict=True)]
    return all(math.isclose(a, b, rel_tol=1e-12) if isinstance(a, float) else a == b for a, b in pairs)


def policy_of(least: int) -> dict[str, Any]:
    """What the silos allow."""
    return {"limits": {"seconds": 300, "memory": "8GiB"}, "policy": {"min_count": least}, "tables": {"lineitem": {"columns": _columns()}}}  # fmt: skip


def _columns() -> dict[str, Any]:
    kept: Any = {"level": "private", "release": "aggregate"}
    return {name: "public" if name in ("l_returnflag", "l_linestatus") else kept for name in
            ("l_returnflag", "l_linestatus", "l_quantity", "l_extendedprice", "l_discount", "l_tax", "l_shipdate")}  # fmt: skip


def profile(files: dict[str, Path], name: str, least: int) -> None:
    """Print where the second run of a statement spends its time."""
    import atoll.query

    with atoll.query.connect({one: str(files[one]) for one in SITES}, policy_of(least)) as db:
        print(f"first {timed(lambda: db.sql(QUERIES[name]))[0]:.3f} s")
        watch = cProfile.Profile()
        watch.enable()
        seconds, _, answer = timed(lambda: db.sql(QUERIES[name]))
        watch.disable()
        print(f"second {seconds:.3f} s, {answer.seconds['local']:.3f} of it at the slowest site")
        pstats.Stats(watch).sort_stats("cumulative").print_stats(45)


def main() -> None:
    """Measure, print and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0, help="TPC-H's scale factor")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "atoll-tpch", help="where the silos lie, for other runs too")  # fmt: skip
    parser.add_argument("--profile", choices=QUERIES, help="print where a statement's time goes, and measure nothing")
    parser.add_argument("--least", type=int, nargs="+", default=[1], help="min_count; from 2 on, sites write down which rows stand behind an answer")  # fmt: skip
    args = parser.parse_args()
    files = make_silos(args.folder / f"sf{args.scale:g}", args.scale)
    if args.profile:
        profile(files, args.profile, args.least[0])
        return
    import duckdb

    rows, raw, load = [], {}, os.getloadavg()[0]
    for least in args.least:
        raw[str(least)] = measure(files, least, args.runs)
        for name, found in raw[str(least)].items():
            middle = {key: 1e3 * statistics.median(values) for key, values in found.items()}
            low, high = 1e3 * min(found["atoll"]), 1e3 * max(found["atoll"])
            ratios = [middle[key] / middle["duckdb"] for key in ("atoll", "again")]
            rows.append(f"| {name.upper()} | {least} | {middle['atoll']:,.0f} ({low:,.0f}–{high:,.0f}) | {middle['again']:,.0f} | {middle['local']:,.0f} | {middle['duckdb']:,.0f} | {ratios[0]:.2f} | {ratios[1]:.2f} | {middle['atoll_processor'] / middle['duckdb_processor']:.2f} | {LIMITS[name] if least == 1 else '–'} |")  # fmt: skip
    page = (
        "# Queries: TPC-H over three silos\n\n"
        f"`python benchmarks/queries.py --scale {args.scale:g} --runs {args.runs} --least {' '.join(map(str, args.least))}`; DuckDB {duckdb.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, load average before {load:.1f}.\n"
        "Milliseconds: medians of runs in turn, in brackets the lowest and highest. Each run is a statement with other constants; `again` is its text a second time. Local is the slowest site's part.\n"
        "The three silos share one process. Ratios are to DuckDB on the union; the last one is of processor time.\n\n"
        "| | `min_count` | Atoll | again | local | DuckDB | ratio | ratio again | ratio of processor time | at most |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n" + "\n".join(rows) + "\n"
    )  # fmt: skip
    print(page)
    results = HERE / "results"
    (results / "queries.md").write_text(page)
    (results / "queries.json").write_text(json.dumps({"scale": args.scale, "runs": args.runs, "duckdb": duckdb.__version__, "load": load, "seconds_by_min_count": raw}, indent=1) + "\n")  # fmt: skip


if __name__ == "__main__":
    main()
