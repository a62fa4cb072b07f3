"""Local indexes find what a scan finds, wherever keys lie, and answers do not depend on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import ConfigError, DataError
from atoll.query import QueryPolicy
from atoll.query.indexes import KeyIndex, PiecewiseGeometricIndex, PointIndex, known_indexes
from atoll.query.indexes import narrowing as narrowing_module
from tests.support.silos import TableSource, connected

KINDS = known_indexes()
ON_KEYS: list[Any] = [one for one in KINDS.values() if issubclass(one, KeyIndex)]
ON_POINTS: list[Any] = [one for one in KINDS.values() if issubclass(one, PointIndex)]

scales = st.sampled_from([1.0, 1e-9, 1e9, 1e300])
offsets = st.sampled_from([0.0, 0.0, 1e9, -1e9])
sizes = st.lists(st.integers(-9, 9) | st.floats(-9, 9), max_size=40)


def placed(drawn: list[float], scale: float, offset: float) -> Any:
    return np.clip(np.array(drawn, np.float64) * scale + offset, -1e300, 1e300)


def require_ranges(index: Any, keys: Any, low: Any, high: Any) -> None:
    found = index.lookup(low, high)
    assert len(found.starts) == len(low) + 1
    for k in range(len(low)):
        rows = found.of(k)
        assert np.array_equal(np.sort(rows), np.flatnonzero((keys >= low[k]) & (keys <= high[k])))
        assert (np.diff(keys[rows]) >= 0).all()


def ranges(keys: Any, more: Any) -> tuple[Any, Any]:
    """Pairs of keys, of numbers next to them and of others; some turned, some without an end."""
    ends = np.concatenate([keys, np.nextafter(keys, np.inf), np.nextafter(keys, -np.inf), more, [-np.inf, np.inf, 0.0]])
    return ends, np.roll(ends, len(ends) // 3 + 1)


@pytest.mark.parametrize("kind", ON_KEYS, ids=lambda kind: kind.name)
@settings(max_examples=12)
@given(sizes, sizes, scales, offsets)
def test_ranges_of_keys_are_those_of_a_scan(kind: Any, drawn: Any, more: Any, scale: float, offset: float) -> None:
    keys, others = placed(drawn, scale, offset), placed(more, scale, offset)
    index = kind(keys)
    assert len(index) == len(keys)
    require_ranges(index, keys, *ranges(keys, others))
    if kind.inserts:
        index.insert(others)
        keys = np.concatenate([keys, others])
        index.insert(others[:2])
        keys = np.concatenate([keys, others[:2]])
        assert len(index) == len(keys)
        require_ranges(index, keys, *ranges(keys, others))


LARGE = {
    "uniform": lambda rng: rng.random(6000), "far": lambda rng: 1e9 + rng.random(3000), "skewed": lambda rng: rng.lognormal(0, 4, 20_000), "powers": lambda rng: 2.0 ** np.arange(-900, 900),
    "ties": lambda rng: rng.integers(0, 40, 5000).astype(float), "two scales": lambda rng: np.concatenate([rng.normal(0, 1e-9, 2000), rng.normal(1e9, 1e-3, 2000)]),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("kind", ON_KEYS, ids=lambda kind: kind.name)
def test_many_keys_are_found(kind: Any, name: str) -> None:
    rng = np.random.default_rng(0)
    keys = rng.permutation(LARGE[name](rng))
    index = kind(keys)
    low, high = np.sort(rng.choice(keys, (2, 60)), axis=0)
    require_ranges(index, keys, low, high)
    if kind.inserts:
        for part in (0.2, 0.9):
            more = np.concatenate([rng.choice(keys, int(part * len(keys))), rng.normal(size=9)])
            index.insert(more)
            keys = np.concatenate([keys, more])
        require_ranges(index, keys, low, high)
    assert index.bytes >= 8 * len(np.unique(keys))


def test_a_segment_errs_by_no_more_than_it_says() -> None:
    keys = np.unique(np.random.default_rng(0).lognormal(0, 3, 20_000))
    index = PiecewiseGeometricIndex(keys)
    assert index.segments[-1] == 1
    assert index.segments[0] < len(keys) / 64
    for depth, (own, starts, slopes, errors) in enumerate(index._levels):
        segment = np.repeat(np.arange(len(slopes)), np.diff(starts))
        miss = np.abs((own - own[starts[:-1]][segment]) * slopes[segment] + starts[:-1][segment] - np.arange(len(own)))
        assert (miss <= errors[segment]).all()
        assert errors.max() <= (4 if depth else 64) * (1 + 1e-9)


# ---------------------------------------------------------------- points


def require_boxes(index: Any, points: Any, low: Any, high: Any) -> None:
    found = index.lookup(low, high)
    for k in range(len(low)):
        assert np.array_equal(found.of(k), np.flatnonzero(((points >= low[k]) & (points <= high[k])).all(axis=1)))


def require_nearest(index: Any, points: Any, asked: Any, k: int) -> None:
    found = index.nearest(asked, k)
    for row, place in zip(found, asked, strict=True):
        apart = points - place
        with np.errstate(over="ignore"):
            distance = np.sqrt(apart[:, 0] * apart[:, 0] + apart[:, 1] * apart[:, 1])
        expected = np.lexsort((np.arange(len(points)), distance))[:k]
        assert np.array_equal(row[: len(expected)], expected)
        assert (row[len(expected) :] == -1).all()


pairs = st.lists(st.tuples(st.integers(-5, 5) | st.floats(-9, 9), st.integers(-5, 5) | st.floats(-9, 9)), max_size=40)


@pytest.mark.parametrize("kind", ON_POINTS, ids=lambda kind: kind.name)
@settings(max_examples=12)
@given(pairs, pairs, st.sampled_from([1.0, 1e-9, 1e9, 1e140]), offsets, st.integers(1, 12))
def test_boxes_and_neighbors_are_those_of_a_scan(kind: Any, drawn: Any, more: Any, scale: float, offset: float, k: int) -> None:  # fmt: skip
    points, others = (placed(one, scale, offset).reshape(-1, 2) for one in (drawn, more))
    index = kind(points)
    ends = np.concatenate([points, others, np.zeros((1, 2))])
    low, high = np.minimum(ends, np.roll(ends, 1, axis=0)), np.maximum(ends, np.roll(ends, 1, axis=0))
    low[-1], high[-1] = -np.inf, np.inf
    require_boxes(index, points, np.concatenate([low, ends]), np.concatenate([high, ends]))
    require_nearest(index, points, ends, k)
    if kind.inserts:
        for added in (others, others[:1], others):
            index.insert(added)
            points = np.concatenate([points, added])
        require_boxes(index, points, low, high)
        require_nearest(index, points, ends, k)


CLOUDS = {
    "uniform": lambda rng: rng.random((5000, 2)), "far": lambda rng: 1e9 + rng.random((3000, 2)), "line": lambda rng: np.stack([np.full(3000, 7.0), rng.random(3000)], axis=1),
    "grid": lambda rng: rng.integers(0, 9, (4000, 2)).astype(float), "skewed": lambda rng: rng.lognormal(0, 3, (15_000, 2)), "one place": lambda rng: np.full((900, 2), 2.5),
}  # fmt: skip


@pytest.mark.parametrize("name", CLOUDS)
@pytest.mark.parametrize("kind", ON_POINTS, ids=lambda kind: kind.name)
def test_many_points_are_found(kind: Any, name: str) -> None:
    rng = np.random.default_rng(0)
    points = CLOUDS[name](rng)
    index = kind(points)
    ends = rng.choice(points, (2, 40))
    for turn in range(2 if kind.inserts else 1):
        if turn:
            more = np.concatenate([rng.choice(points, len(points) // 8), rng.normal(size=(9, 2))])
            index.insert(more)
            points = np.concatenate([points, more])
        require_boxes(index, points, ends.min(axis=0), ends.max(axis=0))
        require_nearest(index, points, ends[0][:12], 9)
    assert index.bytes >= points.nbytes


def test_keys_that_no_index_holds_are_refused() -> None:
    for keys in (np.array([1.0, np.nan]), np.array([np.inf]), np.array([2e300])):
        with pytest.raises(DataError, match="missing, or beyond 1e\\+300"):
            KINDS["rmi"](keys)
    with pytest.raises(ConfigError, match="give one key a row"):
        KINDS["pgm"](np.zeros((2, 2)))
    with pytest.raises(ConfigError, match="give two coordinates a row"):
        KINDS["tree"](np.zeros(4))


# ---------------------------------------------------------------- in statements

TYPES = {"id": "BIGINT", "x": "DOUBLE", "y": "INTEGER", "age": "INTEGER", "pay": "DECIMAL(9,2)"}


def sources() -> dict[str, TableSource]:
    made = {}
    for j in range(2):
        rng = np.random.default_rng(j)
        rows = [(300 * j + k, float(rng.integers(0, 400)) / 4 if k % 50 else None, int(rng.integers(0, 100)), int(rng.integers(0, 90)) if k % 20 else None, float(rng.integers(0, 10_000)) / 100) for k in range(300)]  # fmt: skip
        rows[5:7] = [(300 * j + 5, float("nan"), 3, 4, 5.0), (300 * j + 6, float("inf"), 3, 4, 5.0)]
        made[f"s{j}"] = TableSource({"t": (TYPES, rows)})
    return made


def policy(point: str, key: str) -> dict[str, Any]:
    return {"policy": {"min_count": 1}, "tables": {"t": {"columns": "protected", "points": {"at": {"x": "x", "y": "y", "extent": 200, "precision": 0.001}}, "index": {"at": point, "age": key, "pay": key, "x": key}}}}  # fmt: skip


ASKED = [
    ("sums", "SELECT count(*), sum(pay) FROM t WHERE age BETWEEN 20 AND 25", 1),
    ("sums", "SELECT count(*), sum(age) FROM t WHERE 97.5 > x AND x > 95", 1),
    ("sums", "SELECT count(*) FROM t WHERE x >= 99", 1),  # NaN is above all numbers
    ("sums", "SELECT count(*), sum(age) FROM t WHERE pay <= 3.33 AND age + 1 > 5", 1),
    ("sums", "SELECT count(*) FROM t WHERE age = -1", 1),
    ("sums", "SELECT count(*) FROM t WHERE age < 85", 0),  # most rows
    ("sums", "SELECT count(*) FROM t WHERE age < 5 OR pay < 3", 0),
    ("hufu", "SELECT count(*) FROM t WHERE DWithin(at, POINT(50, 50), 8)", 1),
    ("hufu", "SELECT id FROM t WHERE DWithin(POINT(50, 50), at, 8) AND age > 3", 1),
    ("hufu", "SELECT id FROM t WHERE kNN(POINT(50, 50), at, 9)", 1),
    ("hufu", "SELECT id, Distance(at, POINT(10, 90)) AS d FROM t ORDER BY d LIMIT 5", 1),
    ("hufu", "SELECT id FROM t WHERE age > 5 ORDER BY Distance(at, POINT(10, 90)) LIMIT 5", 0),
]


@pytest.mark.parametrize(("point", "key"), [("tree", "rmi"), *(pytest.param(*pair, marks=pytest.mark.slow) for pair in [("if", "pgm"), ("zm", "alex"), ("lisa", "lipp"), ("rsmi", "pgm")])])  # fmt: skip
def test_an_answer_does_not_depend_on_indexes(point: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def narrow(*args: Any, **named: Any) -> dict[str, str]:
        found = narrowing_module.narrow_tables(*args, **named)
        seen.append(len(found))
        return found

    for module in ("atoll.query.local", "atoll.query.strategies.hufu"):
        monkeypatch.setattr(f"{module}.narrow_tables", narrow)
    with connected(sources(), policy(point, key)) as db:
        for strategy, text, uses in ASKED:
            seen.clear()
            assert db.check(db.sql(text, strategy=strategy)), text
            assert seen == [uses] * 2, text


def test_rows_outside_a_range_are_not_among_the_nearest() -> None:
    """The rows nearest by have coordinates that the site does not count: they take nobody's place."""
    allowed = policy("tree", "pgm")
    allowed["tables"]["t"]["columns"] = {**dict.fromkeys(("id", "y", "age", "pay"), "protected"), "x": {"level": "protected", "range": [55, 100]}}  # fmt: skip
    with connected(sources(), allowed) as db:
        for text in ("SELECT id FROM t WHERE kNN(POINT(50, 50), at, 9)", "SELECT id, Distance(at, POINT(50, 50)) AS d FROM t ORDER BY d LIMIT 5"):  # fmt: skip
            assert db.check(db.sql(text, strategy="hufu")), text


def test_an_index_is_that_of_the_rows_as_they_are() -> None:
    made = sources()
    text = "SELECT count(*) FROM t WHERE age = 7"
    with connected(made, policy("tree", "pgm")) as db:
        before = db.sql(text, strategy="sums").rows[0][0]
        types, rows = made["s0"].tables["t"]
        made["s0"].tables["t"] = (types, [*rows, *[(9000 + k, 1.0, 1, 7, 1.0) for k in range(3)]])
        assert db.sql(text, strategy="sums").rows[0][0] == before + 3


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ({"age": "tree"}, "'tree' is no index of a column"),
        ({"at": "pgm"}, "'pgm' is no index of a point"),
        ({"age": "pgn"}, "Did you mean 'pgm'"),
        ({"age": 3}, "3 is no index of a column"),
    ],
)
def test_an_index_of_a_policy_is_known_and_fits(index: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        QueryPolicy.of({"tables": {"t": {"columns": "public", "points": {"at": {"x": "x", "y": "y"}}, "index": index}}})
    with pytest.raises(ConfigError, match="declare x: and y:"):
        QueryPolicy.of({"tables": {"t": {"columns": "public", "points": {"at": {"wkt": "w"}}, "index": {"at": "zm"}}}})
