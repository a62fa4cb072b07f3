"""Market concentration and credit scores by ZIP: what Conclave moves out of the shares, and what that saves.

Source: Volgushev et al. 2019, "Conclave: secure multi-party computation on big data", sections 2 and 7, which the survey of federated computing lists in Table 21 (source 000): three parties, up to a billion rows,
"push plaintext to the edges". Its data are trips of New York's taxis and drawn credit records, on machines of three clusters, with Sharemind; ours are drawn, and the shares are Atoll's.

Two queries of the paper. *Market concentration*: three fleets of companies learn the Herfindahl-Hirschman index of the market, the sum of squared shares; each fleet adds up its own trips, and the parties add up companies.
*Credit by ZIP*: a regulator knows where people live, two banks know their scores; the banks trust the regulator with the numbers of people, and nobody with the scores.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from atoll.query import SqlConnection, connect
from atoll.reproduce import Claim, Entry, keeping_nothing

__all__ = ["ENTRY"]

_MARKET, _CREDIT = "Market concentration: fleets add up first", "Credit by ZIP: a regulator reads the keys"
_HHI = "SELECT sum(r * r) / (sum(r) * sum(r)) AS hhi FROM (SELECT company, sum(price) AS r FROM trips WHERE price > 0 GROUP BY company) x"  # fmt: skip
_ZIP = "SELECT zip, count(*) AS n, avg(score) AS mean FROM homes h JOIN cards c ON h.person = c.person GROUP BY zip"
_COMPANIES = 10
_TRIPS = {"policy": {"min_count": 1}, "tables": {"trips": {"columns": {"company": "private", "price": {"level": "private", "release": "aggregate"}}}}}  # fmt: skip
_PEOPLE = {
    "policy": {"min_count": 1},
    "tables": {
        "homes": {"columns": {"person": {"trusted": ["regulator"], "key": True}, "zip": {"level": "protected", "trusted": ["regulator"]}}},
        "cards": {"columns": {"person": {"trusted": ["regulator"]}, "score": {"level": "private", "release": "aggregate"}}},
    },
}  # fmt: skip


def _fill(path: Path, tables: dict[str, dict[str, Any]]) -> str:
    import duckdb

    with duckdb.connect(str(path)) as db:
        for name, columns in tables.items():
            shown = ", ".join(f"unnest(${k + 1}::BIGINT[]) AS {column}" for k, column in enumerate(columns))
            db.execute(f"CREATE TABLE {name} AS SELECT {shown}", [column.tolist() for column in columns.values()])
    return str(path)


def _market(folder: Path, rows: int) -> SqlConnection:
    """Three fleets, each with trips of ten companies of different sizes; every thirtieth price is a refund of 0."""
    silos = {}
    for fleet in range(3):
        rng = np.random.default_rng(fleet)
        company = rng.choice(_COMPANIES, rows, p=np.arange(1, _COMPANIES + 1) / 55)
        price = np.where(rng.random(rows) < 1 / 30, 0, rng.integers(3, 30, rows))
        silos[f"fleet{fleet}"] = _fill(folder / f"trips{rows}-{fleet}.duckdb", {"trips": {"company": company, "price": price}})  # fmt: skip
    return connect(silos=silos, policy=_TRIPS)


def _credit(folder: Path, rows: int) -> SqlConnection:
    """A regulator with so many people of 20 ZIP codes, and two banks with half as many cards each; some are of strangers."""
    rng = np.random.default_rng(7)
    nobody, people = np.zeros(0, np.int64), rng.permutation(9 * rows)[:rows]
    homes = {"person": people, "zip": 10_000 + rng.integers(0, 20, rows)}
    silos = {"regulator": _fill(folder / f"homes{rows}.duckdb", {"homes": homes, "cards": {"person": nobody, "score": nobody}})}  # fmt: skip
    for bank in range(2):
        known = np.where(rng.random(rows // 2) < 0.9, rng.choice(people, rows // 2), rng.integers(0, 9 * rows, rows // 2))  # fmt: skip
        cards = {"person": known, "score": rng.integers(300, 850, rows // 2)}
        silos[f"bank{bank}"] = _fill(folder / f"cards{rows}-{bank}.duckdb", {"homes": {"person": nobody, "zip": nobody}, "cards": cards})  # fmt: skip
    return connect(silos=silos, policy=_PEOPLE)


def _ask(db: SqlConnection, text: str, strategy: str) -> dict[str, Any]:
    begin = time.process_time()
    found = db.sql(text, strategy=strategy)
    seconds = time.process_time() - begin
    read = {one["who"]: one["sees"] for one in found.leakage if one.get("kind") == "keys"}
    return {"mb": found.bytes / 1e6, "seconds": seconds, "equal": db.check(found), "read": read, "off": abs(found.predicted / found.bytes - 1)}  # fmt: skip


def _concentrated(folder: Path, quick: bool) -> list[Claim]:
    """Bytes of the index, as fleets grow."""
    few, many, shared = (200, 20_000, 200) if quick else (1_000, 1_000_000, 10_000)
    made = {}
    for rows in dict.fromkeys((few, shared, many)):
        with _market(folder, rows) as db:
            made[rows] = _ask(db, _HHI, "conclave")
            if rows == shared:
                other = _ask(db, _HHI, "smcql")
    equal = all(one["equal"] for one in (*made.values(), other))
    grows, saved = made[many]["mb"] / made[few]["mb"], other["mb"] / made[shared]["mb"]
    return [
        Claim("the index is that of all trips in one place", "exact", "equal" if equal else "unequal", equal, f"DuckDB on the union; {', '.join(f'{rows:,}' for rows in made)} trips a fleet", _MARKET),
        Claim("what the parties send does not grow with the trips", "a billion rows in less than 20 minutes", f"{made[few]['mb']:.3f} MB of {few:,} trips a fleet, {made[many]['mb']:.3f} MB of {many:,}", grows < 1.1, "fleets add up their own trips by company; the parties add up companies", _MARKET),
        Claim("without the fleets' own sums the parties send much more", "limited to thousands of rows", f"{other['mb']:.2f} MB of {shared:,} trips a fleet, to {made[shared]['mb']:.3f} MB", saved > (2 if quick else 10), "smcql: all trips sorted under shares; the paper's other systems run out of memory or take hours", _MARKET),
        Claim.figure(f"processor seconds of {many:,} trips a fleet, all parties", round(made[many]["seconds"], 2), "", _MARKET),
        Claim.figure(f"processor seconds of {shared:,} trips a fleet, smcql beside it", f"{other['seconds']:.2f}, to {made[shared]['seconds']:.2f}", "", _MARKET),
    ]  # fmt: skip


def _scored(folder: Path, quick: bool) -> list[Claim]:
    """Scores by ZIP, with a regulator who reads keys, without one, and by smcql."""
    rows = 100 if quick else 4_000
    with _credit(folder, rows) as db:
        found = {name: _ask(db, _ZIP, name) for name in ("conclave", "conclave:trusted=none", "smcql")}
    hybrid, plain, other = found.values()
    equal = all(one["equal"] for one in found.values())
    alone = list(hybrid["read"]) == ["regulator"] and not plain["read"] and not other["read"]
    return [
        Claim("means by ZIP are those of all rows in one place", "exact", "equal" if equal else "unequal", equal, f"{rows:,} people, as many cards; with a regulator, without, and by smcql", _CREDIT),
        Claim("the regulator alone reads numbers of people and ZIP codes, and nobody scores", "yes", "yes" if alone else "no", alone, hybrid["read"].get("regulator", ""), _CREDIT),
        Claim("a hybrid join and hybrid groups send less than shares", "10 times faster and more", f"{hybrid['mb']:.2f} MB, to {plain['mb']:.2f} MB", hybrid["mb"] < plain["mb"] / (1.5 if quick else 2), "sorting is what shares cost; Atoll's sorts cost less than those the paper had", _CREDIT),
        Claim("and less than smcql", "outperforms SMCQL", f"{hybrid['mb']:.2f} MB, to {other['mb']:.2f} MB", hybrid["mb"] < other["mb"], "the paper's SMCQL has garbled circuits at two parties; ours shares at three", _CREDIT),
        Claim("bytes are predicted to 10 %", None, f"{hybrid['off']:.1%}", hybrid["off"] < 0.1, "with a regulator", _CREDIT),
        Claim.figure("processor seconds with a regulator, without, and of smcql, all parties", ", ".join(f"{one['seconds']:.2f}" for one in found.values()), "", _CREDIT),
    ]  # fmt: skip


@keeping_nothing("query-conclave")
def _run(quick: bool) -> list[Claim]:
    with tempfile.TemporaryDirectory(prefix="atoll-conclave-") as folder:
        return [*_concentrated(Path(folder), quick), *_scored(Path(folder), quick)]


ENTRY = Entry(
    name="query-conclave",
    title="Conclave: market concentration and credit by ZIP, with little under shares",
    source="the survey of federated computing, Table 21: Conclave, Volgushev et al. 2019",
    run=_run,
    needs="the extra sql",
    data=(),
    quick_data=(),
)
