"""Table 21 of the survey of federated computing, run: its systems beside one another as strategies of one planner, on one query set; and the sizes that it prints for them.

Source: source 000, Table 21: type of data, integration mode, attacker, data size and number of owners of SMCQL, ShrinkWrap, SAQE, Conclave, Hu-Fu, Senate and Opaque. The sizes are those that the papers' experiments had, on clusters.

What differs: all strategies are of this package, and share its planner, sums and shares; so bytes and seconds beside one another say what a *plan* costs, and not what seven programs do. Each strategy that is there when this runs takes part; a system without
one is not run. A billion rows are ten million here: the lines over sizes say how bytes and seconds grow. Seconds are of the processor, of all parties in one process. Opaque's enclave is simulated.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll.core.errors import CompositionError, DataError, PolicyError
from atoll.query import SqlConnection, SqlResult, connect
from atoll.query.strategies.strategy import known_strategies, takes_epsilon
from atoll.reproduce import Claim, Entry, keeping_nothing

__all__ = ["ENTRY"]

_SET, _SIZES, _LINES = "One query set, by each strategy", "The sizes of the table", "Bytes and seconds, as rows grow"
_SYSTEMS = {
    "SMCQL": ("smcql", "relational, horizontal, semi-honest; up to 1K rows, 2 owners"),
    "ShrinkWrap": ("shrinkwrap", "relational, horizontal, semi-honest; up to 40K rows, 2 owners"),
    "SAQE": ("saqe", "relational, horizontal, semi-honest; up to 500K rows, 2 owners"),
    "Conclave": ("conclave", "relational, horizontal and vertical, semi-honest; up to 1B rows, 3 owners"),
    "Hu-Fu": ("hufu", "spatial, horizontal, semi-honest; up to 1B rows, 10 owners"),
    "Senate": ("senate", "relational, horizontal, malicious; up to 160K rows, 16 owners"),
    "Opaque": ("opaque", "relational, vertical, malicious; up to 1M rows, 5 owners"),
}
"""System -> the strategy after it, and its row of the table."""
_QUERIES = {
    "count": "SELECT count(*) FROM visits WHERE cost > 250",
    "groups": "SELECT ward, count(*) AS n, sum(cost) AS total FROM visits GROUP BY ward",
    "join": "SELECT zip, count(*) AS n FROM people p JOIN visits v ON p.patient = v.patient WHERE cost > 100 GROUP BY zip",
    "first rows": "SELECT patient, cost FROM visits ORDER BY cost DESC, patient LIMIT 5",
    "nearest": "SELECT patient FROM people WHERE kNN(POINT(500, 500), home, 8)",
}
_NOISE = {"epsilon": 4.0, "delta": 1e-4, "analyst": "anna"}
_HHI = (
    "SELECT sum(r * r) / (sum(r) * sum(r)) AS hhi FROM (SELECT ward, sum(cost // 100) AS r FROM visits GROUP BY ward) x"
)
"""In hundreds: squares of the sums of ten million rows leave 64 bits otherwise, and the sites say so."""
_VERTICAL = "SELECT count(*) AS n, sum(a.x * b.x) AS xx, max(c.x + d.x - e.x) AS most FROM t0 a JOIN t1 b ON a.id = b.id JOIN t2 c ON a.id = c.id JOIN t3 d ON a.id = d.id JOIN t4 e ON a.id = e.id"
_TABLES = {
    "visits": "CREATE TABLE visits AS SELECT (k * 7 + {owner}) % (3 * {rows}) AS patient, 'ward ' || (k * 11 + {owner}) % 9 AS ward, (k * 97 + 31 * {owner}) % 500 AS cost FROM range({rows}) r(k)",
    "people": "CREATE TABLE people AS SELECT {owner} * {rows} + k AS patient, 10000 + k % 20 AS zip, (k * 37 + 411 * {owner}) % 1000 AS x, (k * 61 + 137 * {owner} + k // 1000) % 1000 AS y FROM range({rows}) r(k)",
}


def _policy(rows: int, owners: int) -> dict[str, Any]:
    """What owners of so many rows each allow: all strategies may answer."""
    kept = {"level": "private", "release": "aggregate", "range": [0, 500]}
    return {
        "limits": {"seconds": 600, "memory": "4GiB"},
        "policy": {"min_count": 1, "enclave": {"simulated": True}, "privacy": {"people": {"anna": {"epsilon": 1e6, "delta": 0.5}}}},
        "tables": {
            "visits": {"columns": {"patient": {"level": "protected", "at_most": 2 + owners}, "ward": "public", "cost": {**kept, "level": "protected"}}},
            "people": {"columns": {"patient": {"level": "protected", "key": True}, "zip": "protected", "x": "protected", "y": "protected"},
                       "points": {"home": {"x": "x", "y": "y", "extent": 2000, "precision": 1}}},
            **{f"t{k}": {"columns": {"id": {"level": "protected", "key": True}, "x": "protected"}} for k in range(5)},
        },
    }  # fmt: skip


def _open(folder: Path, owners: int, rows: int, tables: Sequence[str] = ("visits", "people")) -> tuple[SqlConnection, dict[str, str]]:  # fmt: skip
    """Owners of so many rows a table each, as files of DuckDB."""
    import duckdb

    silos = {}
    for owner in range(owners):
        path = folder / f"{'-'.join(tables)}-{owners}-{rows}-{owner}.duckdb"
        with duckdb.connect(str(path)) as db:
            for table in tables:
                db.execute(_TABLES[table].format(owner=owner, rows=rows))
        silos[f"o{owner}"] = str(path)
    return connect(silos=silos, policy=_only(_policy(rows, owners), tables)), silos


def _only(policy: dict[str, Any], tables: Sequence[str]) -> dict[str, Any]:
    return {**policy, "tables": {table: policy["tables"][table] for table in tables}}


def _open_columns(folder: Path, rows: int) -> tuple[SqlConnection, dict[str, str]]:
    """Five owners, each with a column of the same rows."""
    import duckdb

    silos = {}
    for owner in range(5):
        path = folder / f"columns-{rows}-{owner}.duckdb"
        with duckdb.connect(str(path)) as db:
            for k in range(5):
                db.execute(f"CREATE TABLE t{k} AS SELECT k AS id, (k * {7 + 2 * k}) % 100 AS x FROM range({rows if k == owner else 0}) r(k)")  # fmt: skip
        silos[f"o{owner}"] = str(path)
    return connect(silos=silos, policy=_only(_policy(rows, 5), [f"t{k}" for k in range(5)])), silos


def _pooled(silos: Mapping[str, str], found: SqlResult) -> list[Any]:
    """DuckDB's answer to the same statement, over all owners' files."""
    import duckdb

    text = found.statement.pooled if found.statement is not None else ""

    with duckdb.connect() as db:
        for k, path in enumerate(silos.values()):
            db.execute(f"ATTACH '{path}' AS silo{k} (READ_ONLY)")
        tables = {row[0] for row in db.execute("SELECT table_name FROM duckdb_tables() WHERE database_name = 'silo0'").fetchall()}  # fmt: skip
        for table in tables:
            db.execute(f"CREATE VIEW {table} AS " + " UNION ALL ".join(f"FROM silo{k}.{table}" for k in range(len(silos))))  # fmt: skip
        return db.execute(text).fetchall()


def _stds(found: SqlResult) -> list[float]:
    """Standard deviations of the noise in the last columns of an answer; none without noise."""
    return [float(one) for one in ((found.privacy or {}).get("noise_std") or {}).values()]


def _is_right(found: SqlResult, expected: Sequence[Any]) -> bool:
    """Whether an answer is that of all rows in one place, or within six standard deviations of its noise."""
    stds = _stds(found)
    if not stds:
        return sorted(map(str, found.rows)) == sorted(map(str, expected))
    keys = len(found.columns) - len(stds)
    pairs = zip(*(sorted(rows, key=lambda row: str(row[:keys])) for rows in (found.rows, expected)), strict=True)
    return len(found.rows) == len(expected) and all(row[:keys] == other[:keys] and all(abs(float(a) - float(b)) <= 6 * std for a, b, std in zip(row[keys:], other[keys:], stds, strict=True)) for row, other in pairs)  # fmt: skip


def _ask(db: SqlConnection, text: str, strategy: str, **terms: Any) -> tuple[SqlResult, float]:
    begin = time.process_time()
    found = db.sql(text, strategy=strategy, **(terms or (_NOISE if takes_epsilon(strategy) else {})))
    return found, time.process_time() - begin


def _compare(folder: Path, rows: int) -> list[Claim]:
    """Each strategy on each query; systems of the table first, in its order."""
    known, (db, silos) = known_strategies()[1:], _open(folder, 3, rows)
    after = {strategy: system for system, (strategy, _) in _SYSTEMS.items()}
    made = []
    with db:
        for strategy in sorted(known, key=lambda name: list(after).index(name) if name in after else -1):
            made += _compare_one(db, silos, strategy, after.get(strategy, ""), rows)
    missing = [system for system, (strategy, _) in _SYSTEMS.items() if strategy not in known]
    made += [Claim(f"{system}: answers are those of all rows in one place", _SYSTEMS[system][1], None, None, "there is no such strategy yet", _SET) for system in missing]  # fmt: skip
    return made


def _compare_one(db: SqlConnection, silos: Mapping[str, str], strategy: str, system: str, rows: int) -> list[Claim]:
    """What one strategy answers, assuming what, and what it takes."""
    right: dict[str, bool] = {}
    noisy = 0
    sent, seconds, assumed = 0, 0.0, dict[str, None]()
    for name, text in _QUERIES.items():
        try:
            found, took = _ask(db, text, strategy)
        except (CompositionError, PolicyError, DataError):
            continue
        right[name], noisy = _is_right(found, _pooled(silos, found)), noisy + bool(_stds(found))
        sent, seconds = sent + found.bytes, seconds + took
        assumed |= dict.fromkeys(one["assuming"] for one in found.leakage if one.get("assuming"))
    told = f"{', '.join(right) or 'none'}: {sum(right.values())} of {len(right)} right{', within their noise' if noisy else ''}; {sent / 1e6:.2f} MB, {seconds:.1f} s"
    good = bool(right) and all(right.values())
    named = f"{system}: answers are those of all rows in one place" if system else f"{strategy}, which is no system of the table: answers are those of all rows in one place"  # fmt: skip
    return [
        Claim(named, _SYSTEMS[system][1] if system else None, told, good, f"strategy {strategy}; 3 owners, {rows} rows a table each, {len(_QUERIES)} queries, the others it refuses", _SET),
        Claim.figure(f"{system or strategy}: what it assumes", "; ".join(assumed) or "no party is curious about the rows that the answer rests on", "of the statements that it answers", _SET),
    ]  # fmt: skip


def _sized(system: str, rows: int, owners: int, db: SqlConnection, silos: Mapping[str, str], text: str, strategy: str) -> Claim:  # fmt: skip
    """Whether a strategy answers over so many rows in all."""
    with db:
        found, seconds = _ask(db, text, strategy)
        good, noise = _is_right(found, _pooled(silos, found)), bool(_stds(found))
    what = "within six standard deviations of its noise" if noise else "equal to DuckDB on the union"
    return Claim(f"{system}: {rows:,} rows of {owners} owners are answered", _SYSTEMS[system][1].partition("; ")[2], f"{'right' if good else 'wrong'}, {found.bytes / 1e6:.2f} MB, {seconds:.1f} s", good, f"{what}; {text}", _SIZES)  # fmt: skip


def _sizes(folder: Path, quick: bool) -> list[Claim]:
    """The sizes of the table, as far as one machine goes."""
    by = 20 if quick else 1
    made = []
    for system, rows, owners, text in (
        ("SMCQL", 1_000, 3, _QUERIES["join"]),
        ("ShrinkWrap", 7_000 // by, 3, _QUERIES["join"]),
        ("SAQE", 170_000 // by, 3, _QUERIES["count"]),
        ("Conclave", 3_400_000 // by, 3, _HHI),
        ("Hu-Fu", 1_000_000 // by, 10, _QUERIES["nearest"]),
    ):  # fmt: skip
        tables = {"Hu-Fu": ["people"], "Conclave": ["visits"], "SAQE": ["visits"]}.get(system, ["visits", "people"])
        db, silos = _open(folder, owners, rows, tables)
        made.append(_sized(system, rows * owners * len(tables), owners, db, silos, text, _SYSTEMS[system][0]))
    if "senate" in known_strategies():
        owners = 4 if quick else 16
        made.append(_sized("Senate", 64 * owners, owners, *_open(folder, owners, 64, ["visits"]), _HHI, "senate"))
    else:
        made.append(Claim("Senate: 16 owners of 64 rows are answered", "up to 160K rows, 16 owners", None, None, "there is no such strategy yet", _SIZES))  # fmt: skip
    rows = 200_000 // by
    made.append(_sized("Opaque", 5 * rows, 5, *_open_columns(folder, rows), _VERTICAL, "opaque:mode=encryption"))
    few = 4_000 // by
    made.append(_sized("Opaque", 5 * few, 5, *_open_columns(folder, few), _VERTICAL, "opaque:mode=oblivious"))
    return made


def _lines(folder: Path, quick: bool) -> list[Claim]:
    """How bytes and seconds grow: to a hundredth of the table's billion."""
    sizes = (3_000, 30_000) if quick else (10_000, 100_000, 1_000_000, 10_000_000)
    made = []
    for system, text, table, most in (("Conclave", _HHI, "visits", 1.1), ("Hu-Fu", _QUERIES["nearest"], "people", 4.0)):
        line, right = [], []
        for rows in sizes:
            db, silos = _open(folder, 3, rows // 3, [table])
            with db:
                found, seconds = _ask(db, text, _SYSTEMS[system][0])
            right.append(_is_right(found, _pooled(silos, found)))
            line.append((found.bytes, seconds))
        told = ", ".join(f"{rows:,}: {nbytes / 1e3:.1f} KB, {seconds:.2f} s" for rows, (nbytes, seconds) in zip(sizes, line, strict=True))  # fmt: skip
        good = all(right) and line[-1][0] <= most * line[0][0]
        made.append(Claim(f"{system}: what owners send does not grow with their rows", "up to 1B rows", told, good, f"3 owners, at most {most:g} times the bytes of the fewest rows, all answers equal; {text}", _LINES))  # fmt: skip
    return made


@keeping_nothing("query-table21")
def _run(quick: bool) -> list[Claim]:
    with tempfile.TemporaryDirectory(prefix="atoll-table21-") as folder:
        return [*_compare(Path(folder), 30 if quick else 200), *_sizes(Path(folder), quick), *_lines(Path(folder), quick)]  # fmt: skip


ENTRY = Entry(
    name="query-table21",
    title="Systems of federated queries beside one another, as strategies of one planner",
    source="the survey of federated computing, Table 21",
    run=_run,
    needs="the extra sql",
    data=(),
    quick_data=(),
)
