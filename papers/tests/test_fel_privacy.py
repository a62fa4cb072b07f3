"""The rows of fel-privacy: their format is that of the sample, and its reader reads both."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from atoll.core.errors import DataError
from atoll_papers import fel_privacy
from atoll_papers.fel_privacy import draw_impressions, inputs_of, read_impressions, split_users

BLOCKS = ("behaviour", "category", "brand", "mask", "match")


def write_impressions(path: Path, table: fel_privacy.Table) -> None:
    """Write rows in the sample's format, a missing level of consumption and city as an empty word."""
    columns = [table[name] for name in BLOCKS] + [table[name][:, None] for name in fel_privacy._SINGLES]
    words = np.char.mod("%.17g", np.concatenate(columns, axis=1))
    words[:, [255, 258]] = np.where(words[:, [255, 258]] == "0", "", words[:, [255, 258]])
    with gzip.open(path, "wt") as file:
        file.writelines(",".join(row) + "\n" for row in words)


def test_the_reader_returns_what_was_drawn(tmp_path: Path) -> None:
    table = draw_impressions(3, users=12, rows=4)
    write_impressions(tmp_path / "rows.csv.gz", table)
    found = read_impressions(tmp_path / "rows.csv.gz")
    assert set(found) == set(table)
    assert all(np.array_equal(found[name], table[name]) for name in table)


def test_a_row_of_another_format_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(",".join(["1"] * 267) + "\n" + "1,2\n")
    with pytest.raises(DataError, match=r"row 2 cannot be read: 2 columns"):
        read_impressions(tmp_path / "rows.csv")
    (tmp_path / "rows.csv").write_text(",".join(["1"] * 266 + ["yes"]) + "\n")
    with pytest.raises(DataError, match=r"row 1 cannot be read: could not convert string to float: 'yes'"):
        read_impressions(tmp_path / "rows.csv")


def test_users_keep_their_levels_and_clusters_are_no_inputs() -> None:
    table = draw_impressions(5, users=40, rows=8)
    islands = split_users(table)
    assert len(islands) == 40
    assert islands.test is not None
    assert len(islands.test) == 80
    for place in range(40):
        own = islands.shard(place)
        assert len(own) == 6
        assert all(len(np.unique(own[level])) == 1 for level in ("age", "consumption", "city"))
    moved = {**table, "age": table["age"][::-1], "city": table["city"] * 0}
    assert np.array_equal(inputs_of(table), inputs_of(moved))


def test_clicks_depend_on_the_levels_in_different_ways() -> None:
    """One linear rule of all rows is worse than a rule for each age: the ensemble has something to find."""
    table = draw_impressions(1, users=300, rows=20)
    x, sign = inputs_of(table), 2 * table["clicked"] - 1

    def right(rows: np.ndarray) -> float:
        best = np.linalg.lstsq(np.c_[x[rows], np.ones(len(x[rows]))], sign[rows], rcond=None)[0]
        return float((np.sign(np.c_[x[rows], np.ones(len(x[rows]))] @ best) == sign[rows]).sum())

    alone = sum(right(table["age"] == level) for level in range(7))
    assert alone > 1.03 * right(np.ones(len(x), bool))


def test_the_paper_itself_has_rows_where_the_over_arch_is_not_the_best() -> None:
    rows = [row for own in fel_privacy.TABLE_9.values() for row in own.values()]
    assert len(rows) == 9
    assert min(row[3] for row in rows if row[3] > 0) == 0.66
    assert sum(row[3] == max(row) for row in rows) == 8


@pytest.mark.slow
def test_a_quick_run_judges_every_line(tmp_path: Path) -> None:
    from atoll.reproduce import Lab

    claims = fel_privacy.ENTRY.run(Lab(tmp_path), True)
    assert all(one.kind == "figure" or one.holds is not None for one in claims)
    assert [one.holds for one in claims if "costs what its leaves cost" in one.claim] == [True]
