"""Minimum counts: no cell of few rows is shown or follows from the others, within a request and between two."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import PolicyError
from atoll.data import DataTable
from atoll.statistics.answered import AnswerRecord, RowSets, base_sets, require_apart, row_hashes, with_entry
from atoll.statistics.disclosure import hidden, show_counts
from atoll.statistics.plan import Cell


@given(counts=st.lists(st.integers(0, 30), max_size=8), least=st.integers(1, 20))
def test_hidden_cells_do_not_follow_from_the_total(counts: list[int], least: int) -> None:
    rows = np.array(counts, dtype=np.int64)
    told, small = show_counts(rows, least)
    assert ((told == 0) | (told >= least)).all()
    assert (told[~small] == rows[~small]).all()
    if (
        small.any() and (rows > 0).sum() > 1 and rows.sum() >= least
    ):  # what the total leaves is several cells of enough rows
        assert small.sum() >= 2
        assert rows[small].sum() >= least
    assert not (small & (rows == 0)).any()


def test_nothing_is_hidden_that_need_not_be() -> None:
    assert hidden([5, 50, 60], 10).tolist() == [True, True, False]
    assert hidden([5, 6, 60], 10).tolist() == [True, True, False]
    assert hidden([50, 60], 10).tolist() == [False, False]
    assert hidden([3, 0], 10).tolist() == [True, False]


def table(rows: int, seed: int = 0) -> DataTable:
    draw = np.random.default_rng(seed)
    return DataTable(
        {"age": draw.normal(size=rows), "ward": draw.choice(["surgery", "internal"], rows), "n": np.arange(rows)}
    )


def sets(*cells: Cell, of: int = 100) -> list[RowSets]:
    return base_sets(list(cells), "all rows", of)


def recorded(rows: DataTable, *made: RowSets, request: str = "first", known: Any = None) -> Any:
    return with_entry(known, request, list(made), row_hashes(rows))


def test_a_difference_of_too_few_rows_is_refused_both_ways_and_named() -> None:
    rows = table(100)
    hashes = row_hashes(rows)
    everything, some = sets(Cell("", "", None)), sets(Cell("sex", "f", np.arange(97)))
    for first, second in ((everything, some), (some, everything)):
        record = recorded(rows, *first)
        with pytest.raises(PolicyError, match="of the earlier request 'first' is fewer than min_count=4 rows"):
            require_apart(record, second, hashes, 4, "north")
        require_apart(record, second, hashes, 3, "north")  # three rows are enough
    require_apart(recorded(rows, *everything), everything, hashes, 50, "north")


def test_two_people_who_change_places_are_covered() -> None:
    rows = table(100)
    record = recorded(rows, *sets(Cell("", "", np.arange(50))))
    exchanged = sets(Cell("", "", np.array([*range(49), 60])))
    for least in (2, 10):
        with pytest.raises(PolicyError, match=f"fewer than min_count={least}"):
            require_apart(record, exchanged, row_hashes(rows), least, "north")
    require_apart(record, sets(Cell("", "", np.arange(30, 90))), row_hashes(rows), 10, "north")


def test_a_set_is_compared_with_unions_of_the_groups_of_an_earlier_answer() -> None:
    rows, hashes = table(100), row_hashes(table(100))
    groups = sets(
        *(
            Cell("ward", name, np.arange(start, start + 25))
            for name, start in zip("abcd", range(0, 100, 25), strict=True)
        )
    )
    record = recorded(rows, *groups)
    nearly = sets(Cell("", "", np.arange(48)))  # a and b, without two rows
    with pytest.raises(
        PolicyError, match=r"the difference between all rows and all rows with ward=. of the earlier request"
    ):
        require_apart(record, nearly, hashes, 3, "north")
    require_apart(record, nearly, hashes, 2, "north")
    require_apart(record, sets(Cell("", "", np.arange(50))), hashes, 25, "north")
    with pytest.raises(PolicyError, match="fewer than min_count=3"):
        require_apart(recorded(rows, *nearly), groups, hashes, 3, "north")


@given(data=st.data())
def test_no_union_of_an_earlier_answer_is_near_a_set_that_is_admitted(data: st.DataObject) -> None:
    """The closed form against every union of the earlier sets, and their rest."""
    rows = 12
    labels = np.array(data.draw(st.lists(st.integers(-1, 2), min_size=rows, max_size=rows)))
    mine = np.array(data.draw(st.lists(st.integers(-1, 0), min_size=rows, max_size=rows)))
    least, hashes = data.draw(st.integers(2, 5)), np.arange(rows, dtype=np.uint64)
    record = with_entry(None, "first", [RowSets(["a", "b", "c"], labels, described=False)], hashes)
    inside = mine == 0
    near = min(
        int((inside ^ np.isin(labels, chosen)).sum()) for n in range(5) for chosen in combinations((-1, 0, 1, 2), n)
    )
    parts = [part for part in (labels == k for k in range(3)) if part.sum() >= least]
    backwards = [
        min(int((part ^ union).sum()) for union in (inside, ~inside, inside | ~inside, inside & ~inside))
        for part in parts
    ]
    try:
        require_apart(record, [RowSets(["s"], mine)], hashes, least, "north")
        refused = False
    except PolicyError:
        refused = True
    assert refused == ((0 < near < least and inside.sum() >= least) or any(0 < one < least for one in backwards))


def test_rows_that_were_added_or_changed_are_seen() -> None:
    before = table(100)
    everything = sets(Cell("", "", None))
    record = recorded(before, *everything)
    columns = {name: before[name] for name in before.columns}
    more = DataTable(
        {name: np.concatenate([values, values[:2]]) for name, values in columns.items()}
    )  # two patients, twice
    moved = DataTable({name: values[::-1] for name, values in columns.items()})
    longer = sets(Cell("", "", None), of=102)
    with pytest.raises(PolicyError, match="fewer than min_count=3"):
        require_apart(record, longer, row_hashes(more), 3, "north")
    require_apart(record, longer, row_hashes(more), 2, "north")
    require_apart(record, everything, row_hashes(moved), 50, "north")


def test_hashes_know_the_content_and_not_the_form() -> None:
    rows = table(50)
    wider = DataTable(
        {name: rows[name].astype("<U40") if name == "ward" else rows[name] for name in reversed(rows.columns)}
    )
    assert np.array_equal(row_hashes(rows), row_hashes(wider))
    swapped = DataTable({"age": rows["n"].astype(float), "n": rows["age"], "ward": rows["ward"]})
    assert not (row_hashes(rows) == row_hashes(swapped)).any()
    assert len(np.unique(row_hashes(table(2000)))) == 2000


def test_a_record_keeps_each_answer_once() -> None:
    rows = table(20)
    everything = sets(Cell("", "", None), of=20)
    record = recorded(rows, *everything, known=recorded(rows, *everything))
    assert len(record["entries"]) == 1
    assert list(RowSets.unpacked(record["entries"][0]["sets"][0]).labels) == [0] * 20


def test_a_record_of_an_older_version_is_read() -> None:
    rows = table(20)
    inside = np.arange(20) < 19
    old = {"request": "first", "columns": ["age"], "cells": ["all rows"], "bits": [np.packbits(inside)], "version": "a"}

    class Place:
        name = "north"

        def left(self, name: str) -> Any:
            return {"entries": [old], "tables": {"a": row_hashes(rows)}}

    record = AnswerRecord.opened(Place(), "second", 3, rows)
    with pytest.raises(PolicyError, match="of the earlier request 'first' is fewer than min_count=3"):
        record.describe(sets(Cell("", "", None), of=20))
    record.describe(sets(Cell("", "", np.arange(19)), of=20))
