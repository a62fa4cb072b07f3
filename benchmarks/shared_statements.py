"""Measures statements under shares: a sum over a join of repeated keys, next to the join in rows, statements over a relation that stays shared, next to the same written out, and a matching of riders and drivers at three processes.

    python benchmarks/shared_statements.py                    # 64 x 64 riders and drivers, and sums over joins of 3 x 64 rows
    python benchmarks/shared_statements.py --works predicted  # bytes of sums over joins of more rows, without running them

`sum` runs ``SELECT a.g, sum(a.x * b.y) … GROUP BY a.g`` twice: added up along the join tree (`atoll.query.secure.yannakakis`), and with the join in rows, as many as a policy's ``at_most: 8`` allows. `predicted` is what `EXPLAIN` would
say of both, and of a join that no policy bounds. `kept` joins patients, visits and bills once (`CREATE TEMP TABLE`), and asks two statements of the relation; ratios are to the same statements written out. The parties of `matching` are three processes (engine `socket`), and its weight is that of SciPy's optimum. Seconds are those of the whole statement, processor seconds those of all processes.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

SITES = ("north", "south", "west")
SUM = "SELECT a.g, sum(a.x * b.y) AS s FROM a JOIN b ON a.k = b.k GROUP BY a.g ORDER BY a.g"


def policy_of(most: int | None) -> dict[str, Any]:
    key = {"level": "protected", "at_most": most} if most else "protected"
    columns = {"k": key, "g": "protected", "x": "protected", "y": "protected"}
    return {"policy": {"min_count": 1}, "tables": {"a": {"columns": {c: columns[c] for c in "kgx"}}, "b": {"columns": {c: columns[c] for c in "ky"}}}}  # fmt: skip


def write(folder: Path, tables: dict[str, tuple[str, list[tuple[Any, ...]]]]) -> str:
    folder.mkdir(parents=True)
    for name, (head, rows) in tables.items():
        (folder / f"{name}.csv").write_text(head + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return str(folder)


def ask(silos: dict[str, str], policy: Any, text: str, engine: str) -> tuple[Any, float, float]:
    """An answer, its seconds, and the processor seconds of all processes."""
    from atoll.query.connection import SqlConnection, open_silo

    with SqlConnection({name: open_silo(place, policy, name) for name, place in silos.items()}, engine=engine) as db:
        db.catalog  # noqa: B018 # reads the tables
        began, clock = time.perf_counter(), os.times()
        found = db.sql(text, strategy="smcql")
        now = os.times()
        return found, time.perf_counter() - began, sum(now[:4]) - sum(clock[:4])


def run_sums(folder: Path, rows: int) -> None:
    import atoll.query.secure.plan as plan

    rng, silos = np.random.default_rng(0), {}
    keys = np.repeat(np.arange(3 * rows // 8 + 1), 8)[: 3 * rows]  # each key in 8 rows of both tables, over all sites
    parts = [rng.permutation(keys).reshape(3, rows) for _ in range(2)]
    for j, name in enumerate(SITES):
        tables = {"a": ("k,g,x", [(k, int(k) % 3, int(x)) for k, x in zip(parts[0][j], rng.integers(0, 99, rows), strict=True)]),
                  "b": ("k,y", [(k, int(y)) for k, y in zip(parts[1][j], rng.integers(0, 99, rows), strict=True)])}  # fmt: skip
        silos[name] = write(folder / name, tables)
    early, answers = plan.aggregate_early, []
    for what, change, text in (
        ("added up along the join tree", early, SUM),
        ("8 rows a key, as rows", lambda made: made, SUM.replace("a.x * b.y", "b.y * a.x")),
    ):
        plan.aggregate_early = change  # a plan is kept by its text, so the other way has another text
        found, seconds, processor = ask(silos, policy_of(8), text, "inline")
        answers.append(found.rows)
        print(f"| sum over a join, 3 x {rows} rows: {what} | {seconds:.2f} | {processor:.2f} | {found.bytes / 1e6:.2f} | {found.facts()['rounds']} |", flush=True)  # fmt: skip
    plan.aggregate_early = early
    assert answers[0] == answers[1], answers


ONCE = "SELECT p.id, p.ward, v.cost, b.paid FROM p JOIN v ON p.id = v.id JOIN b ON p.id = b.id"
ASKED = ("SELECT ward, count(*) AS n, sum(cost) AS c FROM joined GROUP BY ward ORDER BY ward", "SELECT count(*) AS n FROM joined WHERE cost > paid")  # fmt: skip


def run_kept(folder: Path, rows: int) -> None:
    """One relation, and statements over it beside the same written out."""
    from atoll.query.connection import SqlConnection, open_silo

    rng, silos = np.random.default_rng(0), {}
    keys = rng.permutation(3 * rows).reshape(3, rows)
    for j, name in enumerate(SITES):
        values = [(int(k), int(k) % 4, int(x)) for k, x in zip(keys[j], rng.integers(0, 99, rows), strict=True)]
        tables = {"p": ("id,ward", [(k, ward) for k, ward, _ in values]), "v": ("id,cost", [(3 * rows - 1 - k, x) for k, _, x in values]), "b": ("id,paid", [((k + 7) % (3 * rows), 99 - x) for k, _, x in values])}  # fmt: skip
        silos[name] = write(folder / name, tables)
    key = {"level": "protected", "key": True}
    policy = {"limits": {"kept": "1GiB"}, "policy": {"min_count": 1}, "tables": {"p": {"columns": {"id": key, "ward": "protected"}}, "v": {"columns": {"id": key, "cost": "protected"}}, "b": {"columns": {"id": key, "paid": "protected"}}}}  # fmt: skip
    with SqlConnection({name: open_silo(place, policy, name) for name, place in silos.items()}) as db:

        def measure(what: str, text: str) -> tuple[Any, float]:
            began, clock = time.perf_counter(), os.times()
            found = db.sql(text, strategy="smcql:slices=none")
            seconds, processor = time.perf_counter() - began, sum(os.times()[:4]) - sum(clock[:4])
            print(f"| {what} | {seconds:.2f} | {processor:.2f} | {found.bytes / 1e6:.2f} | {found.facts()['rounds']} |", flush=True)  # fmt: skip
            return found, processor

        db.sql("SELECT count(*) FROM p", strategy="smcql:slices=none")  # reads the tables, compiles
        measure(f"keep a join of three tables, 3 x {rows} rows", f"CREATE TEMP TABLE joined AS {ONCE}")
        for text in ASKED:
            kept, one = measure(f"from it: {text.partition(' AS')[0]} …", text)
            whole, other = measure("the same written out", f"WITH joined AS MATERIALIZED ({ONCE}) {text.replace(' FROM joined', ' FROM joined AS j')}")  # fmt: skip
            assert kept.rows == whole.rows, (kept.rows, whole.rows)
            print(f"| ratio | | {other / one:.1f} | {whole.bytes / kept.bytes:.1f} | {whole.facts()['rounds'] / kept.facts()['rounds']:.1f} |", flush=True)  # fmt: skip


def predict_sums(rows: tuple[int, ...]) -> None:
    from atoll.query import QueryPolicy
    from atoll.query.secure.costs import predict_cost
    from atoll.query.secure.plan import make_row_plan, make_secure_plan
    from atoll.query.statement import Catalog, parse_statement

    catalog = Catalog({"a": {"k": "BIGINT", "g": "BIGINT", "x": "BIGINT"}, "b": {"k": "BIGINT", "y": "BIGINT"}})
    print(
        "\n| rows of each table at each of three sites | along the join tree, MB | 8 rows a key, MB | all pairs, MB |"
    )
    print("|--:|--:|--:|--:|")
    for count in rows:
        cells = []
        for make, most in ((make_secure_plan, None), (make_row_plan, 8), (make_row_plan, None)):
            made = make(parse_statement(SUM, catalog), catalog, QueryPolicy.of(policy_of(most)))
            cost = predict_cost(made, {name: [count, count] for name in SITES}, {}, SITES)
            cells.append(f"{cost.nbytes / 1e6:,.1f}")
        print(f"| {count:,} | {' | '.join(cells)} |", flush=True)


def run_matching(folder: Path, side: int) -> None:
    from scipy.optimize import linear_sum_assignment

    rng = np.random.default_rng(0)
    fares, costs = rng.integers(0, 60, (2, side, 2)), rng.integers(0, 60, (2, side, 2))
    r, d = fares[0], costs[0]
    silos = {}
    for j, name in enumerate(SITES):
        mine = range(j, side, 3)
        tables = {"riders": ("rider,x,y", [(k, *map(int, r[k])) for k in mine]), "drivers": ("driver,u,v", [(k, *map(int, d[k])) for k in mine])}  # fmt: skip
        silos[name] = write(folder / name, tables)
    weights = np.maximum(0, r[:, :1] * d[:, 0] + r[:, 1:] * d[:, 1] - 1500)
    one, other = linear_sum_assignment(weights, maximize=True)
    best = int(weights[one, other].sum())
    policy = {"policy": {"min_count": 1}, "tables": {"riders": {"columns": "protected"}, "drivers": {"columns": "protected"}}}  # fmt: skip
    text = "SELECT rider, driver, x * u + y * v - 1500 AS w FROM Matching(riders, drivers, riders.x * drivers.u + riders.y * drivers.v - 1500)"
    found, seconds, processor = ask(silos, policy, text, "socket")
    assert sum(row[2] for row in found.rows) == best, (found.rows, best)
    print(f"| matching of {side} x {side} | {seconds:.2f} | {processor:.2f} | {found.bytes / 1e6:.2f} | {found.facts()['rounds']} |", flush=True)  # fmt: skip


def main() -> None:
    """Print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", default="sum,kept,matching,predicted")
    parser.add_argument("--rows", type=int, default=64, help="rows of each table at each site")
    parser.add_argument("--side", type=int, default=64, help="riders, and drivers")
    args = parser.parse_args()
    print("| statement | seconds (a matching of 64 x 64: at most 60) | processor s | MB | messages in a row |\n|---|--:|--:|--:|--:|")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        if "sum" in args.works:
            run_sums(Path(folder) / "sums", args.rows)
        if "kept" in args.works:
            run_kept(Path(folder) / "kept", args.rows)
        if "matching" in args.works:
            run_matching(Path(folder) / "matching", args.side)
    if "predicted" in args.works:
        predict_sums((64, 256, 1024))


if __name__ == "__main__":
    main()
