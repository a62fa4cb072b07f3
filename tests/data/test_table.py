"""Tables: columns as a file has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from atoll.core.errors import DataError
from atoll.data import DataTable


def test_a_file_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "north.csv"
    path.write_text("age;ward;n\n61,5;surgery;1\n;NA;2\n")
    read = DataTable.read(path, delimiter=";", decimal=",", drop=["n"])
    assert read.columns == ("age", "ward")
    assert np.array_equal(read["age"], [61.5, np.nan], equal_nan=True)
    assert read.missing("ward").tolist() == [False, True]
    assert len(read) == 2
    assert "age" in read
    assert not read["age"].flags.writeable
    assert DataTable.read(path, delimiter=";", decimal=",", columns=["n"]).columns == ("n",)
    assert repr(read) == "DataTable('north.csv': 2 rows, age float64, ward text)"


def test_frames_and_dicts_are_tables() -> None:
    frame = pd.DataFrame({"a": [1, None], "b": ["x", None], "when": pd.to_datetime(["2026-01-01", None])})
    made = DataTable.of(frame)
    assert made.missing("a").tolist() == [False, True]
    assert made.missing("b").tolist() == [False, True]
    assert made["when"].dtype.kind == "M"
    assert DataTable.of({"a": [True, None, False]})["a"].tolist()[0] == 1.0
    both = DataTable.stacked([DataTable({"a": [1, 2]}), DataTable({"a": ["x"]})])
    assert both["a"].tolist() == ["1", "2", "x"]


@pytest.mark.parametrize(
    ("made", "match"),
    [
        (lambda: DataTable({}), "there are no columns"),
        (lambda: DataTable({"a": [1], "b": [1, 2]}), r"columns of \[1, 2\] rows"),
        (lambda: DataTable({"a": [object()]}), "column 'a' holds objects"),
        (lambda: DataTable({"a": np.array(3)}), "shape"),
        (lambda: DataTable({"age": [1]})["agee"], "no column 'agee'. Did you mean 'age'"),
        (lambda: DataTable.stacked([DataTable({"a": [1]}), DataTable({"b": [1]})]), "no column .a."),
    ],
)
def test_what_is_no_table_is_refused(made: Any, match: str) -> None:
    with pytest.raises(DataError, match=match):
        made()
