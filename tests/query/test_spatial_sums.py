"""Sums within an area by sums between owners: equal to masked sums, also in what few units withhold; and each site's record is kept."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from atoll.core.errors import AtollError
from tests.support.silos import TableSource, connected

TYPES = {"id": "BIGINT", "x": "DOUBLE", "y": "DOUBLE", "age": "INTEGER", "pay": "DOUBLE"}
POINTS = {"p": {"x": "x", "y": "y", "extent": 100, "precision": 0.1}}
LEVELS = {"id": "private", "x": "private", "y": "private", "age": {"level": "private", "release": "aggregate"}, "pay": {"level": "private", "release": "aggregate"}}  # fmt: skip


def policy_of(least: int, unit: str = "") -> dict[str, Any]:
    table = {"columns": LEVELS, "points": POINTS, **({"unit": unit} if unit else {})}
    return {"policy": {"min_count": least}, "tables": {"t": table}}


def sites(count: int, rows: int = 12) -> dict[str, TableSource]:
    """Rows on a line, dealt out; site 0 has one without a place."""
    every = [(k // 2, float(k), 0.0, 20 + 7 * k % 40, 1.5 * k if k % 4 else None) for k in range(rows)]
    return {f"s{j}": TableSource({"t": (TYPES, [*every[j::count], *([(99, None, 0.0, 50, 1.0)] if not j else [])])}) for j in range(count)}  # fmt: skip


STATEMENTS = (
    "SELECT count(*), avg(age), sum(pay) FROM t WHERE DWithin(p, POINT(0, 0), 7.5)",
    "SELECT count(*), sum(pay) FROM t WHERE DWithin(p, POINT(0, 0), 2.5)",
    "SELECT count(*) AS n, count(*) FILTER (WHERE age > 40) AS old, avg(pay) FILTER (WHERE age > 25) AS p FROM t WHERE DWithin(p, POINT(0, 0), 9)",
    "SELECT sum(CASE WHEN age > 50 THEN pay ELSE 0 END) / count(*) AS part FROM t WHERE DWithin(p, POINT(0, 0), 11)",
    "SELECT count(*) FROM t WHERE DWithin(p, POINT(50, 0), 1)",
)


def outcome(db: Any, text: str, strategy: str) -> Any:
    """Rows and what is withheld; or that a site's record refuses, which it does for the same statements whoever adds up."""
    try:
        one = db.sql(text, strategy=strategy)
    except AtollError as error:
        if "fewer than min_count" not in str(error):
            raise
        return "refused"
    assert db.check(one), (text, strategy)
    assert strategy == "sums" or abs(one.predicted / one.bytes - 1) < 0.1, text
    return one.rows, one.withheld_groups, one.withheld_values


@pytest.mark.quick("3-2-id")
@pytest.mark.parametrize(
    ("owners", "least", "unit"), [pytest.param(2, 3, "", marks=pytest.mark.slow), (3, 4, ""), (3, 2, "id"), (3, 1, "")]
)
def test_sums_and_what_is_withheld_are_those_of_masked_sums(owners: int, least: int, unit: str) -> None:
    seen = []
    for text in STATEMENTS:
        found = []
        for strategy in ("hufu", "sums"):
            with connected(sites(owners), policy_of(least, unit)) as db:
                found.append(outcome(db, text, strategy))
        assert found[0] == found[1], text
        seen.append(found[0])
    assert sum(one != "refused" for one in seen) >= 3
    assert least == 1 or any(one == ([], 1, 0) for one in seen)


def test_a_site_refuses_what_differs_from_an_earlier_answer_by_few_units() -> None:
    with connected(sites(3), policy_of(3)) as db:
        assert db.sql(STATEMENTS[0], strategy="hufu").rows[0][0] == 8
        assert db.sql(STATEMENTS[0], strategy="hufu").rows[0][0] == 8
        with pytest.raises(AtollError, match="fewer than min_count=3"):
            db.sql(STATEMENTS[0].replace("7.5", "8.5"), strategy="hufu")
        with pytest.raises(AtollError, match="fewer than min_count=3"):  # the record is that of all strategies
            db.sql(STATEMENTS[0].replace("7.5", "8.5"), strategy="sums")


def test_no_number_of_units_is_seen() -> None:
    """Whoever has 2 or 1 of 3 rows that are asked for, nobody learns more than that they are too few; and the plan says so."""
    for rows in (1, 2):
        with connected(sites(3, rows), policy_of(3)) as db:
            found = db.sql(STATEMENTS[0], strategy="hufu")
            assert (found.rows, found.withheld_groups) == ([], 1)
            assert "which numbers too few units stand behind, or none" in json.dumps(found.leakage)
            assert "the number of units" not in json.dumps(found.leakage)
            assert "are there 3 units behind each number" in json.dumps(found.plan)


def test_sites_that_find_different_numbers_of_units_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from atoll.core.errors import DataError
    from atoll.query.strategies import hufu

    turns = itertools.count()

    async def lies(*given: Any) -> Any:
        few, hidden = await kept(*given)
        return few, [*hidden, 0] if next(turns) == 0 else hidden

    kept = hufu.find_few
    monkeypatch.setattr(hufu, "find_few", lies)
    with connected(sites(3), policy_of(3)) as db, pytest.raises(DataError, match="sites found different numbers"):
        db.sql(STATEMENTS[0], strategy="hufu")
