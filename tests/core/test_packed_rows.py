"""Records are packed behind a program's back: they read as a list of dicts does, in a fraction of its memory."""

from __future__ import annotations

import copy
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core import message as M
from atoll.core.federation.scope import Labels
from atoll.core.persistence import packed_rows
from atoll.core.persistence.packed_rows import PackedRows, RowBlock

VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-5, 5), st.floats(), st.text(max_size=3), st.sampled_from(["main", "observer"]),
    st.lists(st.integers(-3, 3), max_size=4), st.lists(st.floats(allow_nan=False), max_size=3), st.lists(st.text(max_size=2), max_size=2),
    st.floats(width=32).map(np.float32), st.integers(0, 9).map(np.int64), st.booleans().map(np.bool_), st.just({"a": [1, None]}), st.tuples(st.integers()),
)  # fmt: skip
ROWS = st.lists(st.dictionaries(st.sampled_from("abcd"), VALUES), max_size=12)


def typed(value: Any) -> Any:
    """A value with the types of all its parts, so that 1, 1.0 and True differ, and NaN equals itself."""
    if isinstance(value, dict):
        return {name: typed(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [typed(each) for each in value]
    return type(value), repr(value)


@given(ROWS)
def test_a_block_returns_what_was_put_in(rows: list[dict[str, Any]]) -> None:
    for block in (RowBlock.of(rows), RowBlock.read(M.decode(M.encode(RowBlock.of(rows).tree), copy=True))):
        found = block.rows()
        assert [typed(row) for row in found] == [typed(row) for row in rows]
        assert [list(row) for row in found] == [list(row) for row in rows], "keys keep their order"
        for name in "abcde":
            assert typed(block.column(name)) == typed([row.get(name) for row in rows])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_rows, "BLOCK", 3)
    monkeypatch.setattr(packed_rows, "MEMORY", 200)


def made(count: int) -> list[dict[str, Any]]:
    rows = [{"round": i, "loss": 1 / (i + 1), "who": [i, i + 1], "note": "x" * (i % 5)} for i in range(count)]
    for row in rows[::7]:
        row["test/accuracy"] = np.float64(row["loss"])
    return rows


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("spills", [False, True])
def test_rows_read_like_a_list(tmp_path: Path, spills: bool) -> None:
    rows = made(100)
    packed = PackedRows(folder=tmp_path if spills else None)
    for count, row in enumerate(rows, 1):
        packed.append(row)
        assert len(packed) == count
        assert packed[-1] is row
    assert packed == rows
    assert rows == packed
    assert list(reversed(packed)) == rows[::-1]
    assert any(isinstance(block, tuple) for block in packed._blocks) == spills
    assert [typed(packed[i]) for i in range(-100, 100)] == [typed(rows[i]) for i in range(-100, 100)]
    assert packed[3:90:5] == rows[3:90:5]
    assert packed[::-1] == rows[::-1]
    assert packed[5:5] == []
    assert packed.names == {"round", "loss", "who", "note", "test/accuracy"}
    assert typed(packed.column("test/accuracy")) == typed([row.get("test/accuracy") for row in rows])
    assert packed != rows[:-1]
    assert packed != [*rows[:-1], {}]
    with pytest.raises(IndexError, match="out of range"):
        packed[100]
    packed[0]["round"] = 7
    assert packed[0] == rows[0], "an old row is a copy"
    assert list(tmp_path.iterdir()) == [], "the file has no name"


@pytest.mark.usefixtures("small")
def test_a_copy_shares_blocks_and_goes_its_own_way(tmp_path: Path) -> None:
    rows = made(50)
    packed = PackedRows(rows, tmp_path)
    other = packed.copy({"round": 50})
    for i in range(20):
        packed.append({"round": -i})
        other.append({"round": 100 + i})
    assert packed == [*rows, *({"round": -i} for i in range(20))]
    assert other == [*rows, {"round": 50}, *({"round": 100 + i} for i in range(20))]
    del packed
    assert other[0] == rows[0], "the file lives as long as somebody reads it"
    assert copy.deepcopy(other) == other


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("after", [0, 1, 17, 60, 61])
def test_what_a_checkpoint_writes_is_read_back(tmp_path: Path, after: int) -> None:
    rows = made(61)
    packed = PackedRows(rows, tmp_path)
    trees = M.decode(M.encode({"rows": packed.trees(after)}), copy=True)["rows"]
    found = PackedRows(rows[:after], tmp_path)
    found.extend(trees)
    assert [typed(row) for row in found] == [typed(row) for row in rows]


@pytest.mark.usefixtures("small")
def test_what_cannot_be_written_stays_in_memory(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"n": i, "odd": {i}} for i in range(40)]
    assert PackedRows(rows, tmp_path) == rows
    assert PackedRows(made(40), tmp_path / "is not there") == made(40)


def test_ten_thousand_rows_take_a_tenth_of_a_list() -> None:
    def row(i: int) -> dict[str, Any]:
        numbers = {f"measure-{k}": i * 1.5 + k for k in range(10)}
        return {"slot": "main", "clock": i * 0.1, "round": i, **numbers}

    def cost(kept: Any) -> int:
        tracemalloc.start()
        for i in range(10_000):
            kept.append(row(i))
        found = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return found

    assert cost(PackedRows()) < 10_000 * (12 * 8) + (1 << 19) < cost([]) / 3


@given(st.lists(st.one_of(st.integers(-3, 30).map(lambda i: f"t/@{i}"), st.sampled_from(["t/@1/", "t/@01", "t/@1/a", "t/@2/a", "u/@1", "t/@", "t/@x", "t/@1@2", "t/@²"])), max_size=60))  # fmt: skip
def test_labels_are_a_set(labels: list[str]) -> None:
    kept, known = Labels(), set[str]()
    for label in labels:
        assert kept.add(label) == (label not in known)
        known.add(label)


def test_labels_of_rounds_are_one_range() -> None:
    kept = Labels()
    assert all(kept.add(f"step/@{number}") for number in [*range(1, 500), *range(999, 499, -1)])
    assert kept._ranges == {("step/", ""): ([1], [1000])}
    assert not kept._others
    assert not any(kept.add(f"step/@{number}") for number in range(1, 1000))
