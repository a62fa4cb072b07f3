"""Measures the local indexes of queries, next to `numpy.searchsorted`, SciPy's `cKDTree` and a scan by DuckDB.

    python benchmarks/indexes.py                  # a million keys and points
    python benchmarks/indexes.py --rows 100000

Keys are lognormal (sigma 2), points lie in ten clusters. `build` is in seconds; `look up` is microseconds of one question of 2,000 that are asked at once: ranges and boxes of about 100 rows, and the 10 nearest rows to a point. `beside` is
what an index needs beside the keys or points and the numbers of their rows. DuckDB is asked one question after the other, and only a few. Processor seconds, one run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

ASKED = 2_000


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    found = work()
    return time.process_time() - began, found


def show(name: str, build: float | None, lookup: float, near: float | None, beside: float | None) -> None:
    cells = ["–" if build is None else f"{build:.2f}", f"{lookup:.1f}", "–" if near is None else f"{near:.1f}", "–" if beside is None else f"{beside / 1e6:.2f}"]  # fmt: skip
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def scan(table: dict[str, Any], texts: list[str]) -> float:
    """Microseconds of a question to DuckDB."""
    import duckdb

    with duckdb.connect(config={"threads": 1}) as db:
        frame = db.from_arrow(__import__("pyarrow").table(table))
        frame.create("t")
        spent, _ = timed(lambda: [db.execute(text).fetchall() for text in texts])
    return spent / len(texts) * 1e6


def measure_keys(kinds: dict[str, Any], rows: int, rng: Any) -> None:
    keys = rng.lognormal(0, 2, rows)
    ordered = np.sort(keys)
    begin = rng.integers(0, rows - 100, ASKED)
    low, high = ordered[begin], ordered[begin + 100]
    print(f"\n| {rows:,} keys | build, s | look up, us | | beside, MB |\n|---|--:|--:|--:|--:|")
    expected = None
    for name, kind in kinds.items():
        build, index = timed(lambda kind=kind: kind(keys))
        lookup, found = timed(lambda index=index: index.lookup(low, high))
        expected = found.rows if expected is None else expected
        assert np.array_equal(keys[found.rows], keys[expected])
        show(f"`{name}`", build, lookup / ASKED * 1e6, None, index.bytes - 16 * rows)
    build, order = timed(lambda: np.argsort(keys, kind="stable"))

    def search() -> Any:
        first, last = np.searchsorted(ordered, low), np.searchsorted(ordered, high, "right")
        places = np.repeat(first - np.cumsum(np.append(0, last - first))[:-1], last - first) + np.arange((last - first).sum())  # fmt: skip
        return order[places]

    lookup, _ = timed(search)
    show("`numpy.searchsorted`", build, lookup / ASKED * 1e6, None, 0)
    show("DuckDB, a scan", None, scan({"k": keys}, [f"SELECT rowid FROM t WHERE k BETWEEN {a!r} AND {b!r}" for a, b in zip(low[:20].tolist(), high[:20].tolist(), strict=True)]), None, 0)  # fmt: skip


def measure_points(kinds: dict[str, Any], rows: int, rng: Any) -> None:
    from scipy.spatial import cKDTree

    points = rng.random((10, 2))[rng.integers(0, 10, rows)] + rng.normal(0, 0.05, (rows, 2))
    places = points[rng.integers(0, rows, ASKED)]
    side = float(np.sqrt(100 / rows)) / 4
    print(f"\n| {rows:,} points | build, s | box, us | 10 nearest, us | beside, MB |\n|---|--:|--:|--:|--:|")
    expected = None
    for name, kind in kinds.items():
        build, index = timed(lambda kind=kind: kind(points))
        lookup, found = timed(lambda index=index: index.lookup(places - side, places + side))
        near, rank = timed(lambda index=index: index.nearest(places, 10))
        expected = (found.rows, rank) if expected is None else expected
        assert np.array_equal(found.rows, expected[0])
        assert np.array_equal(rank, expected[1])
        show(f"`{name}`", build, lookup / ASKED * 1e6, near / ASKED * 1e6, index.bytes - 24 * rows)
    build, tree = timed(lambda: cKDTree(points))
    lookup, _ = timed(lambda: tree.query_ball_point(places, side, p=np.inf))
    near, _ = timed(lambda: tree.query(places, 10))
    show("`cKDTree`", build, lookup / ASKED * 1e6, near / ASKED * 1e6, None)
    some = places[:20].tolist()
    box = scan({"x": points[:, 0], "y": points[:, 1]}, [f"SELECT rowid FROM t WHERE x BETWEEN {x - side!r} AND {x + side!r} AND y BETWEEN {y - side!r} AND {y + side!r}" for x, y in some])  # fmt: skip
    first = scan({"x": points[:, 0], "y": points[:, 1]}, [f"SELECT rowid FROM t ORDER BY sqrt((x - {x!r}) * (x - {x!r}) + (y - {y!r}) * (y - {y!r})) LIMIT 10" for x, y in some])  # fmt: skip
    show("DuckDB, a scan", None, box, first, 0)
    print(f"\n{len(expected[0]) / ASKED:.0f} rows a box.")


def main() -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    args = parser.parse_args()
    from atoll.query.indexes import KeyIndex, known_indexes

    kinds = known_indexes()
    rng = np.random.default_rng(0)
    measure_keys({name: kind for name, kind in kinds.items() if issubclass(kind, KeyIndex)}, args.rows, rng)
    measure_points({name: kind for name, kind in kinds.items() if not issubclass(kind, KeyIndex)}, args.rows, rng)


if __name__ == "__main__":
    main()
