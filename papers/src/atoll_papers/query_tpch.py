"""The 22 queries of TPC-H over three silos that share no rows: each answer is DuckDB's on all rows in one place; and the seconds, bytes and strategy of each.

Source: the survey of federated computing (source 000, section 3 and Table 21), whose systems answer queries like these; TPC Benchmark H, specification 3.0.1, has the queries. Where ``ATOLL_DATA`` has
``hufu_sample``, the tables are its three databases, 4,500 orders of 450 customers, two in three of whom are at another silo than their order; otherwise, and in the quick form, they are drawn (`atoll_papers.tpch`).

What differs: the tables are TPC-H's at scale factor 0.003 or smaller, and where the parameters of the validation run choose no row of so small tables, others stand in their place. Columns are protected; nations and regions are public to all silos,
as each has them. The three silos are parties in one process, so seconds are those of all of them together.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path
from typing import Any

from atoll.core.errors import DataError
from atoll.query import SqlConnection, connect
from atoll.reproduce import Claim, Entry, keeping_nothing

from .tpch import QUERIES, draw_silos, policy_of, read_silos, write_union

__all__ = ["ENTRY"]

_ANSWERS, _TOTAL = "Answers", "All of them"
_ORDERS, _QUICK = (600, 1), (120, 11)
"""Orders of the drawn tables, and the seed: one with which every query finds rows."""


def _open(folder: Path, quick: bool) -> tuple[dict[str, str], str]:
    """The silos, and where their rows are from."""
    if not quick:
        with contextlib.suppress(DataError):  # it is not there
            return read_silos(folder), "hufu_sample"
    orders, seed = _QUICK if quick else _ORDERS
    return draw_silos(folder, orders, seed), f"drawn, {orders} orders"


def _has_row(rows: list[Any]) -> bool:
    """Whether an answer has a row with a value: an empty one is easily equal."""
    return any(value is not None for row in rows for value in row)


def _answer(db: SqlConnection, pooled: Any, number: int, data: str) -> tuple[Claim, float, float, int, str]:
    """One query: whether its answer is DuckDB's, and what it took."""
    begin, clock = time.perf_counter(), time.process_time()
    found = db.sql(QUERIES[number])
    seconds, processor = time.perf_counter() - begin, time.process_time() - clock
    expected = pooled.execute(QUERIES[number]).fetchall()
    equal = db.check(found) is True and len(found.rows) == len(expected) and _has_row(expected)
    shown = f"{found.strategy}, {processor:.1f} processor s, {found.bytes / 1e6:.2f} MB"
    return Claim(f"query {number} is answered", "exact", shown if equal else f"unequal ({shown})", equal, f"DuckDB on the union of three silos, {len(expected)} row{'' if len(expected) == 1 else 's'}; {data}", _ANSWERS), seconds, processor, found.bytes, found.strategy  # fmt: skip


@keeping_nothing("query-tpch")
def _run(quick: bool) -> list[Claim]:
    with tempfile.TemporaryDirectory(prefix="atoll-tpch-") as name:
        silos, data = _open(Path(name), quick)
        pooled = write_union(silos)
        with connect(silos=silos, policy=policy_of()) as db:
            made = [_answer(db, pooled, number, data) for number in QUERIES]
        counts = {table: pooled.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("customer", "orders", "lineitem")}  # fmt: skip
        pooled.execute("CREATE VIEW apart AS " + " UNION ALL ".join(f"SELECT o_custkey NOT IN (SELECT c_custkey FROM silo{k}.customer) AS away FROM silo{k}.orders" for k in range(len(silos))))  # fmt: skip
        away = pooled.execute("SELECT avg(CAST(away AS INTEGER)) FROM apart").fetchone()[0]
        pooled.close()
    strategies = [strategy for *_, strategy in made]
    return [
        *(claim for claim, *_ in made),
        Claim.figure("rows", ", ".join(f"{count:,} {table}" for table, count in counts.items()), f"{data}; all silos together", _TOTAL),
        Claim.figure("orders whose customer is at another silo", f"{away:.0%}", "", _TOTAL),
        Claim.figure("seconds of all queries", f"{sum(seconds for _, seconds, *_ in made):.0f}, of the processor {sum(processor for _, _, processor, *_ in made):.0f}", "all parties in one process, planning included, comparison not", _TOTAL),
        Claim.figure("MB of all queries", round(sum(size for *_, size, _ in made) / 1e6, 1), "of all parties, each byte between sites counts up and down", _TOTAL),
        Claim.figure("strategies", ", ".join(f"{name} {strategies.count(name)}" for name in sorted(set(strategies))), "chosen by the planner", _TOTAL),
    ]  # fmt: skip


ENTRY = Entry(
    name="query-tpch",
    title="TPC-H's 22 queries over three silos that share no rows",
    source="the survey of federated computing, section 3: federated queries; TPC-H 3.0.1",
    run=_run,
    needs="the extra sql",
    data=(),
    quick_data=(),
)
