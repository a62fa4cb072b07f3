"""Keys as text: what is one key, what is refused, and the order of all sides."""

from __future__ import annotations

import hashlib
import unicodedata
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import ConfigError, DataError
from atoll.data import DataTable
from atoll.data.readers.csv import table_of_csv
from atoll.secure.psi import RowKeys, normalise_key, order_keys
from atoll.secure.psi import keys as keys_module

GOLDEN = ["c2dcbba86f27cd6b", "fd2a64e0ce0fa147"]
WORDS = st.lists(st.text(st.characters(codec="utf-8"), max_size=4), max_size=20)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ([7, "7", " 7", "\ufeff7", "7 \ufeff", 7.0, b"7", np.int64(7), "\u00a07"], "7"),
        (["\u00e9", "e\u0301"], "\u00e9"),
        ([None, float("nan"), "", " ", "\ufeff"], ""),
    ],
)
def test_texts_of_one_key(values: list, key: str) -> None:
    assert {normalise_key(value) for value in values} == {key}


@given(st.text(st.characters(codec="utf-8")))
def test_normalising_twice_changes_nothing_more(text: str) -> None:
    once = normalise_key(text)
    assert normalise_key(once) == once == unicodedata.normalize("NFC", once)
    assert normalise_key(f" \ufeff{text} ") == once


def test_text_that_is_not_utf_8_is_refused() -> None:
    for wrong in ("\ud800", b"\xff"):
        with pytest.raises(DataError, match="not UTF-8"):
            normalise_key(wrong)


def test_two_texts_of_one_number_are_refused_unless_you_say_what_they_are() -> None:
    table = {"id": ["a8", "007", "8", "7"]}
    with pytest.raises(DataError, match="«007» at row 3 and «7» at row 5") as caught:
        RowKeys.of(table, "id", where="bank.csv", row_offset=2)
    assert "key='text'" in str(caught.value)
    assert set(RowKeys.of(table, "id", key="text").names) == {"a8", "007", "8", "7"}
    assert set(RowKeys.of(table, "id", key="number").names) == {"a8", "8", "7"}
    assert RowKeys.of({"id": ["007", "008"]}, "id").names  # one text each
    assert set(RowKeys.of({"id": ["+7", "7.0", "7", "-0", "0.50", "1e3", "\u0667"]}, "id", key="number").names) == {
        "7", "0", "0.5", "1e3", "\u0667",
    }  # fmt: skip
    with pytest.raises(ConfigError, match="key='words'"):
        RowKeys.of(table, "id", key="words")
    with pytest.raises(DataError, match="no column 'di'"):
        RowKeys.of(table, "di")


def test_capitals_make_two_keys_and_a_warning() -> None:
    with pytest.warns(UserWarning, match="1 key differs .* rows 0 and 2"):
        keys = RowKeys.of({"id": ["U2", "u3", "u2"]}, "id")
    assert set(keys.names) == {"U2", "u2", "u3"}


def test_null_has_no_key_and_repeats_are_one() -> None:
    keys = RowKeys.of({"id": ["u1", "u2", "u2", float("nan"), "u3", ""]}, "id", row_offset=2)
    assert sorted(keys.names) == ["u1", "u2", "u3"]
    assert [keys.names[i] if i >= 0 else None for i in keys.rows] == ["u1", "u2", "u2", None, "u3", None]
    assert {name: int(row) for name, row in zip(keys.names, keys.places, strict=True)} == {"u1": 0, "u2": 1, "u3": 4}
    keys.require_distinct("first")
    with pytest.raises(DataError, match="1 keys stand in several rows, one in rows 3 and 4: «u2»"):
        keys.require_distinct()
    assert keys.shape() == {"a9": 3}


def test_composite_keys_keep_their_parts_apart() -> None:
    keys = RowKeys.of({"a": ["x", "xy", "x", None], "b": ["yz", "z", "yz", "z"]}, ["a", "b"])
    assert len(keys) == 2
    assert keys.rows[3] == -1
    with pytest.raises(DataError, match="U\\+001F"):
        RowKeys.of({"a": ["x\x1fy"], "b": ["z"]}, ["a", "b"])


@given(WORDS, st.integers(0, 3), st.randoms())
def test_the_order_is_that_of_u_whatever_the_file(words: list[str], seed: int, chance) -> None:
    words = [f"{i}-{word}" for i, word in enumerate(words)]
    keys = RowKeys.of({"id": words}, "id", seed=seed, key="text")
    again = list(words)
    chance.shuffle(again)
    assert RowKeys.of({"id": again}, "id", seed=seed, key="text").names == keys.names
    u = [int.from_bytes(hashlib.blake2b(f"{seed}:{k}".encode(), digest_size=8).digest(), "big") for k in keys.names]
    assert u == sorted(u) == order_keys(keys.names, seed).tolist()


def test_golden_order() -> None:
    """Of ``printf 0:u1 | b2sum -l 64``."""
    assert [f"{u:016x}" for u in order_keys(["u1", "\u00e9"])] == GOLDEN


def test_a_column_of_the_csv_reader_stays_text(tmp_path) -> None:
    path = tmp_path / "bank.csv"
    path.write_text("\ufeffid,x\n007,1\n 7,2\nNA,3\n", encoding="utf-8")
    assert table_of_csv(path)["id"].tolist() == ["007", "7", "NA"], "zeros before a number are a code"
    assert table_of_csv(path, text=["id"])["id"].tolist() == ["007", "7", ""]
    assert table_of_csv(path, text=["id"])["x"].dtype == np.int64
    with pytest.raises(DataError, match=r"no column 'di'\. Did you mean 'id'"):
        table_of_csv(path, text=["di"])


def test_a_table_of_a_site_names_its_columns_where_one_is_missing():
    """A `DataTable` is not iterable, unlike a dict."""
    with pytest.raises(DataError, match=r"no column 'idd'.*choose from \['id', 'x'\]"):
        RowKeys.of(DataTable({"id": ["a"], "x": [1]}), "idd")


def test_large_keys_that_did_not_change_are_read_once(monkeypatch):
    """By content: a value that changes in place, or another reading of the same values, is seen."""
    monkeypatch.setattr(keys_module, "_LARGE", 100)
    monkeypatch.setattr(keys_module, "_READ", OrderedDict())
    count, read = [0], keys_module.normalise_key

    def counted(value):
        count[0] += 1
        return read(value)

    monkeypatch.setattr(keys_module, "normalise_key", counted)
    for values in ([f"u{i}" for i in range(200)], np.array([f"u{i}" for i in range(200)])):
        keys_module._READ.clear()
        count[0], table = 0, {"id": values}
        first = RowKeys.of(table, "id")
        assert RowKeys.of({"id": values}, "id") is first
        assert count[0] == 200
        assert RowKeys.of(table, "id", seed=1).seed == 1
        values[7] = "new"
        changed = RowKeys.of(table, "id")
        assert set(changed.names) - set(first.names) == {"new"}
        assert count[0] == 600
    assert len(keys_module._READ) == 2
    assert RowKeys.of({"id": [1] * 100 + [0] * 100}, "id").names != RowKeys.of({"id": [True] * 100 + [0] * 100}, "id").names  # fmt: skip
