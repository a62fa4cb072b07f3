"""The nearest rows of 2 to 10 owners: bytes, comparisons and answers of Hu-Fu's search, beside the published ones and beside a sort under shares.

Source: the survey of federated computing (source 000, sections 3.2 to 3.5 and Table 21), which describes Hu-Fu; its numbers are of Tong et al. 2022, "Hu-Fu: Efficient and Secure Spatial Queries over Data
Federation": k 16, ten companies with 1,029,081 points of Beijing, eleven machines. That data cannot be had, so points are drawn: towns of different sizes on a square of 200 km, in whole metres.

What differs: sums have masks between pairs in place of Shamir's shares, a comparison is a lookup in a shared table in place of a multiplication, and rows go through a masked table in place of a ring. The noise by which
Hu-Fu saves comparisons is not needed: owners find the smallest of their own k-th distances, up to a power of two, by one sum that shows nothing else.
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

_EXACT, _OWN, _SORT = "From the extent: Hu-Fu without noise", "From the owners' own distances: Hu-Fu with noise", "Beside a sort under shares"  # fmt: skip
_PUBLISHED = {2: (58.5, 39.4), 4: (234.8, 160.8), 6: (493.0, 357.7), 8: (784.0, 475.1), 10: (1125.2, 588.3)}
"""Owners -> KB of one kNN without and with noise (Hu-Fu, k 16)."""
_SIDE, _K = 200_000, 16
_NEAREST = "SELECT id FROM cabs WHERE kNN(POINT(?, ?), place, 16)"
_POLICY = {
    "policy": {"min_count": 1},
    "tables": {
        "cabs": {"columns": "protected", "points": {"place": {"x": "x", "y": "y", "extent": _SIDE, "precision": 1}}}
    },
}


def _draw(rows: int, rng: np.random.Generator, density: int) -> Any:
    """Points of towns, the first of which is the city; fewer points lie closer, so that the 16th of an owner is some 60 m away whatever their number."""
    centres = np.random.default_rng(7).uniform(0.2 * _SIDE, 0.8 * _SIDE, (20, 2))
    centres[0] = _SIDE / 2
    town = rng.choice(20, rows, p=[0.62, *[0.02] * 19])
    spread = (np.where(town == 0, 2_500.0, 450.0) * np.sqrt(density / 100_000))[:, None]
    return np.clip(np.rint(centres[town] + spread * rng.standard_normal((rows, 2))), 0, _SIDE).astype(np.int64)


def _open(folder: Path, owners: int, rows: int) -> SqlConnection:
    import duckdb

    silos = {}
    for owner in range(owners):
        points = _draw(rows, np.random.default_rng(owner), rows)
        path = folder / f"{owners}-{owner}.duckdb"
        with duckdb.connect(str(path)) as db:
            db.execute("CREATE TABLE cabs AS SELECT $1 * 1000000 + row_number() OVER () AS id, x, y FROM (SELECT unnest($2) AS x, unnest($3) AS y)", [owner, points[:, 0].tolist(), points[:, 1].tolist()])  # fmt: skip
        silos[f"o{owner}"] = str(path)
    return connect(silos=silos, policy=_POLICY)


def _ask(db: SqlConnection, strategy: str, runs: int, rows: int) -> dict[str, Any]:
    """Means over places that are drawn as the points are; whether all answers are those of all rows in one place."""
    places = _draw(runs, np.random.default_rng(99), rows)
    found, equal, began = [], [], 0.0
    for x, y in places.tolist():
        start = time.process_time()
        one = db.sql(_NEAREST, [x, y], strategy=strategy)
        began += time.process_time() - start
        found.append(one)
        equal.append(len(found) > 3 or db.check(one, [x, y]))  # the check loads all rows
    facts = [one.facts() for one in found]
    return {"kb": float(np.mean([one.bytes for one in found])) / 1000, "comparisons": float(np.mean([one["comparisons"] for one in facts])), "most": max(one["comparisons"] for one in facts),
            "equal": all(equal), "seconds": began / runs, "off": max(abs(one.predicted / one.bytes - 1) for one in found)}  # fmt: skip


def _searched(folder: Path, quick: bool) -> list[Claim]:
    made: dict[str, list[Claim]] = {_EXACT: [], _OWN: []}
    rows, runs = (2_000, 2) if quick else (100_000, 10)
    all_equal, off, seconds = True, 0.0, 0.0
    for n in (2, 4, 10) if quick else (2, 4, 6, 8, 10):
        with _open(folder, n, rows) as db:
            for place, (part, strategy) in enumerate(((_EXACT, "hufu:bound=extent"), (_OWN, "hufu"))):
                one, published = _ask(db, strategy, runs, rows), _PUBLISHED[n][place]
                all_equal, off, seconds = all_equal and one["equal"], max(off, one["off"]), one["seconds"]
                made[part].append(Claim(f"KB of one kNN, {n} owners", published, round(one["kb"], 1), one["kb"] <= published, f"at most as many; {rows:,} drawn points each, mean of {runs} places; each byte between owners counts up and down", part))  # fmt: skip
                if n == 10:
                    what = (
                        "at most 18 comparisons"
                        if place == 0
                        else "owners' own distances leave about 6 of 18 comparisons"
                    )
                    good = one["most"] <= 18 if place == 0 else 4 <= one["comparisons"] <= 8
                    made[part].append(Claim(what, "18" if place == 0 else "about 6", round(one["comparisons"], 1), good, f"log2 of 200 km over 1 m; {'every place' if place == 0 else 'mean, from 4 to 8; drawn so dense that the 16th of an owner is some 60 m away'}; {n} owners", part))  # fmt: skip
    made[_EXACT] += [
        Claim("answers are those of all rows in one place", "exact", "equal" if all_equal else "unequal", all_equal, "DuckDB on the union, the first places of each number of owners", _EXACT),
        Claim("bytes are predicted to 10 %", None, f"{off:.1%}", off < 0.1, "largest error of all statements", _EXACT),
        Claim.figure("processor seconds of one kNN, 10 owners, all owners and DuckDB together", round(seconds, 2), "the paper's 100 ms are wall time on eleven machines", _EXACT),
    ]  # fmt: skip
    return [*made[_EXACT], *made[_OWN]]


def _sorted(folder: Path, quick: bool) -> list[Claim]:
    """Each owner's k nearest in plaintext, and a sort of all candidates under shares: the plan that the paper calls SMCQL-GIS and Conclave-GIS."""
    made, rows = [], 2_000 if quick else 100_000
    (x, y), *_ = _draw(1, np.random.default_rng(99), rows).tolist()
    (folder / "all").mkdir()
    with _open(folder / "all", 2, rows) as db:
        search = db.sql(_NEAREST, [x, y], strategy="hufu")
    silos = {}
    for owner in range(2):
        points = _draw(rows, np.random.default_rng(owner), rows)
        first = np.argsort(((points - [x, y]) ** 2).sum(axis=1), kind="stable")[:_K]
        lines = [f"{owner * 1_000_000 + k + 1},{points[k, 0]},{points[k, 1]}\n" for k in first.tolist()]
        (folder / f"near{owner}").mkdir()
        (folder / f"near{owner}" / "cabs.csv").write_text("id,x,y\n" + "".join(lines))
        silos[f"o{owner}"] = str(folder / f"near{owner}")
    with connect(silos=silos, policy=_POLICY) as near:
        text = "SELECT id, Distance(place, POINT(?, ?)) AS d FROM cabs ORDER BY d, id LIMIT 16"
        shared = near.sql(text, [x, y], strategy="smcql")
    same = sorted(row[0] for row in shared.rows) == sorted(row[0] for row in search.rows)
    ratio = shared.bytes / search.bytes
    made.append(Claim("both plans give the same rows", "exact", "equal" if same else "unequal", same, "2 owners, k 16", _SORT))  # fmt: skip
    made.append(Claim("a sort of 2 k candidates sends more than the search", "11.2 MB and 207.1 MB, to 0.039 MB", f"{shared.bytes / 1e6:.3f} MB, to {search.bytes / 1e6:.3f} MB", ratio > 1, "the paper sorts in garbled circuits (SMCQL) and by shares (Conclave); ours, under shares at three parties, sends far less than both", _SORT))  # fmt: skip
    return made


@keeping_nothing("query-hufu")
def _run(quick: bool) -> list[Claim]:
    with tempfile.TemporaryDirectory(prefix="atoll-hufu-") as folder:
        return [*_searched(Path(folder), quick), *_sorted(Path(folder), quick)]


ENTRY = Entry(
    name="query-hufu",
    title="The nearest rows of many owners: Hu-Fu's search, its bytes and comparisons",
    source="the survey of federated computing, section 3.2: Hu-Fu, Tong et al. 2022",
    run=_run,
    needs="the extras sql and secure",
    data=(),
    quick_data=(),
)
