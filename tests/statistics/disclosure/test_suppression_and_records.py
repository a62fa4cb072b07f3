"""Minimum counts: no cell of few rows is shown or follows from the others, within a request and between two."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import PolicyError
from atoll.data import DataTable
from atoll.statistics.cells import Cell
from atoll.statistics.disclosure.answered import entry_of, require_apart, row_hashes, with_entry
from atoll.statistics.disclosure.suppression import hidden, shown


@given(counts=st.lists(st.integers(0, 30), max_size=8), least=st.integers(1, 20))
def test_hidden_cells_do_not_follow_from_the_total(counts: list[int], least: int) -> None:
    rows = np.array(counts, dtype=np.int64)
    told, small = shown(rows, least)
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


def asked(rows: DataTable, cells: list[Cell], request: str = "first", columns: tuple[str, ...] = ("age",)):
    return entry_of(request, "all rows", columns, cells, row_hashes(rows)), row_hashes(rows)


def test_a_difference_of_too_few_rows_is_refused_both_ways_and_named() -> None:
    rows = table(100)
    everything, some = Cell("", "", None), Cell("sex", "f", np.arange(97))
    for first, second in ((everything, some), (some, everything)):
        entry, hashes = asked(rows, [first])
        record = with_entry(None, entry, hashes)
        other, _ = asked(rows, [second], "second")
        with pytest.raises(
            PolicyError, match="of the earlier request 'first' is fewer than min_count=4 rows, and both describe 'age'"
        ):
            require_apart(record, other, hashes, 4, "north")
        require_apart(record, other, hashes, 3, "north")  # three rows are enough
        unrelated, _ = asked(rows, [second], "second", ("n",))
        require_apart(record, unrelated, hashes, 4, "north")
    again, hashes = asked(rows, [everything], "again")
    require_apart(with_entry(None, again, hashes), again, hashes, 50, "north")


def test_rows_that_were_added_or_changed_are_seen() -> None:
    before, hashes = table(100), row_hashes(table(100))
    entry, _ = asked(before, [Cell("", "", None)])
    record = with_entry(None, entry, hashes)
    columns = {name: before[name] for name in before.columns}
    more = DataTable(
        {name: np.concatenate([values, values[:2]]) for name, values in columns.items()}
    )  # two patients, twice
    moved = DataTable({name: values[::-1] for name, values in columns.items()})
    other, others = asked(more, [Cell("", "", None)], "second")
    with pytest.raises(PolicyError, match="fewer than min_count=3"):
        require_apart(record, other, others, 3, "north")
    require_apart(record, other, others, 2, "north")
    same, those = asked(moved, [Cell("", "", None)], "third")
    require_apart(record, same, those, 50, "north")


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
    entry, hashes = asked(table(20), [Cell("", "", None)])
    record = with_entry(with_entry(None, entry, hashes), entry, hashes)
    assert len(record["entries"]) == 1
