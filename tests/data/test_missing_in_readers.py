"""A label that is empty, NaN or declared missing is missing in every reader; a -1 that nobody declared is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import DataError
from atoll.data import (
    Dataset,
    Islands,
    concatenate,
    from_csv_folder,
    from_pandas,
    from_torch,
    read_csv,
    read_leaf,
    read_npz,
    read_parquet,
)
from atoll.data.missing import name_number

X = [0.5, 1.5, 2.5, 3.5, 4.5]
Y = [0, 2, 1, 2, 0]
THERE = [True, False, True, True, False]


def same(data: Any) -> None:
    assert data["y"].tolist() == [0, 0, 1, 2, 0]
    assert data["labelled"].tolist() == THERE
    assert (data.task, data.classes) == ("classification", 3)
    assert data["y"].dtype == np.int64


@pytest.mark.parametrize("hole", ["", "NaN", "-1", "NA"])
def test_csv(tmp_path: Path, hole: str) -> None:
    rows = [f"{x},{y if there else hole}" for x, y, there in zip(X, Y, THERE, strict=True)]
    (tmp_path / "a.csv").write_text("\n".join(["x,y", *rows]))
    missing = -1 if hole == "-1" else None
    same(read_csv(tmp_path / "a.csv", target="y", missing=missing))
    (tmp_path / "b.csv").write_text("x,y\n1.5,\n2.5,\n")  # a party without any label
    found = from_csv_folder(tmp_path, target="y", missing=missing)
    same(found.shard("a").dataset())
    assert found.shard("b")["labelled"].tolist() == [False, False]


def test_arrays_and_objects(tmp_path: Path) -> None:
    nan = np.where(THERE, Y, np.nan)
    marked = np.where(THERE, Y, -1)
    same(Dataset({"x": X, "y": nan}))
    same(Dataset({"x": X, "y": marked}, missing=-1))
    same(Dataset({"x": X, "y": np.where(THERE, Y, 99)}, missing=[-1, 99]))
    np.savez(tmp_path / "a.npz", x=np.array(X), y=marked)
    same(read_npz(tmp_path / "a.npz", missing=-1))
    same(from_torch(list(zip(X, marked, strict=True)), missing=-1))
    told = {"users": ["u"], "num_samples": [5]}
    labels = [y if there else None for y, there in zip(Y, THERE, strict=True)]
    (tmp_path / "a.json").write_text(json.dumps({**told, "user_data": {"u": {"x": X, "y": labels}}}))
    same(read_leaf(tmp_path / "a.json").shard("u").dataset())
    words = [None if y is None else "abc"[y] for y in labels]
    (tmp_path / "b.json").write_text(json.dumps({**told, "user_data": {"u": {"x": X, "y": words}}}))
    assert read_leaf(tmp_path / "b.json").about.labels == ("a", "b", "c")


def test_frames_and_parquet(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"x": X, "y": [y if there else None for y, there in zip(Y, THERE, strict=True)]})
    same(from_pandas(frame, target="y"))
    frame.to_parquet(tmp_path / "a.parquet")
    same(read_parquet(tmp_path / "a.parquet", target="y"))
    words = pandas.DataFrame(
        {"x": X, "y": [["a", "b", "c"][y] if there else "?" for y, there in zip(Y, THERE, strict=True)]}
    )
    assert from_pandas(words, target="y").about.labels == ("a", "b", "c")
    numbers = pandas.DataFrame({"x": X, "y": ["0", "unknown", "1", "2", "unknown"]})
    same(from_pandas(numbers, target="y", missing="unknown"))


def test_other_tasks() -> None:
    amounts = Dataset({"x": X, "y": [0.5, np.nan, 1.0, 2.5, np.nan]})
    assert (amounts.task, amounts["labelled"].tolist()) == ("regression", THERE)
    signs = Dataset({"x": X, "y": [-1, 9, 1, -1, 9]}, missing=9)
    assert (signs.task, signs.classes, signs["labelled"].tolist()) == ("binary", 2, THERE)
    several = Dataset({"x": [1.0, 2.0], "y": [[0.5, np.nan], [1.0, 2.0]]})
    assert several["labelled"].tolist() == [[True, False], [True, True]]
    none = Dataset({"x": X, "y": [np.nan] * 5})
    assert (none.task, none["labelled"].any()) == ("unlabelled", False)
    with pytest.raises(DataError, match="'y' has inf at row 1"):
        Dataset({"x": [0.0, 1.0, 2.0], "y": [np.nan, np.inf, 1.0]})


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=12), st.integers(-5, 9))
def test_what_stands_in_the_hole_changes_nothing(rows: list[tuple[int, bool]], garbage: int) -> None:
    y, there = np.array([y for y, _ in rows]), np.array([there for _, there in rows])
    x = np.arange(len(y), dtype=np.float32)
    marked = Dataset({"x": x, "y": np.where(there, y, garbage), "labelled": there}, classes=4, task="classification")
    declared = Dataset({"x": x, "y": np.where(there, y, -9)}, classes=4, task="classification", missing=-9)
    assert marked.y.tolist() == declared.y.tolist() == np.where(there, y, 0).tolist()


def test_parties_with_and_without_labels_join() -> None:
    some = Dataset({"x": X, "y": Y}, labels=("a", "b", "c"))
    bare = Dataset({"x": X})
    part = Dataset({"x": X, "y": [0, 1, -1, 0, 1]}, labels=("b", "d"), missing=-1)
    found = Islands.from_datasets({"some": some, "bare": bare, "part": part})
    assert found.about.labels == ("a", "b", "c", "d")
    assert found.shard("bare")["labelled"].any() == np.False_
    assert found.shard("part")["y"].tolist() == [1, 3, 0, 1, 3]
    assert found.shard("part")["labelled"].tolist() == [True, True, False, True, True]
    assert concatenate([bare, some]).task == "classification"
    wide = Dataset({"x": X, "y": [[0.5, np.nan]] * 5})
    both = concatenate([wide, Dataset({"x": X, "y": np.ones((5, 2))}), bare])
    assert both["labelled"].sum() == 5 + 10


def test_an_undeclared_minus_one_is_refused_with_party_and_remedy(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"label «-1» at row 1 is outside.*data set 'north'.*declare it: missing=-1"):
        Dataset({"x": X, "y": [0, -1, 1, 2, 0]}, name="north")
    (tmp_path / "north.csv").write_text("x,y\n1.5,0\n2.5,2\n3.5,0\n")
    (tmp_path / "south.csv").write_text("x,y\n1.5,1\n2.5,-1\n")
    with pytest.raises(DataError, match=r"-1 among its classes.*table 'south'.*missing=-1; else list the classes"):
        from_csv_folder(tmp_path, target="y")
    listed = {"y": ["-1", "0", "1", "2"]}
    assert from_csv_folder(tmp_path, target="y", categories=listed).about.labels == ("-1", "0", "1", "2")
    found = from_csv_folder(tmp_path, target="y", missing=-1)
    assert found.about.labels == ("0", "1", "2")
    assert found.shard("south")["labelled"].tolist() == [True, False]


def test_classes_with_many_digits_keep_them(tmp_path: Path) -> None:
    """A cell without a label makes a column of whole numbers one of fractions, and six digits would be one class."""
    (tmp_path / "a.csv").write_text("x,y\n1.5,1000001\n2.5,1000002\n3.5,\n")
    assert read_csv(tmp_path / "a.csv", target="y", task="classification").about.labels == ("1000001", "1000002")
    assert [name_number(one) for one in (7.0, -0.5, 0.1234567, 1e20, 2**53 + 1)] == [
        "7",
        "-0.5",
        "0.1234567",
        "1e+20",
        "9007199254740993",
    ]
