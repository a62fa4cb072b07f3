"""Sources of a silo: what they read, what they cannot reach, and that a silo stays usable."""

from __future__ import annotations

import contextlib
import datetime
import os
import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from atoll.core.errors import AtollError, ConfigError, DataError, TaskError
from atoll.query import QueryPolicy, connect, open_silo
from atoll.query.databases.sqlite import SQLiteFile, type_of_declared

POLICY = {"policy": {"min_count": 1}, "tables": {"visits": {"columns": "public"}}}
ROWS = [("A", 3, Decimal("10.50"), 1.5, datetime.date(2024, 1, 31)), ("B", None, Decimal("-0.25"), None, None)]


def fill(folder: Path) -> dict[str, Path]:
    """The same two rows as a folder of CSV, one of Parquet, a file of DuckDB and one of SQLite."""
    import duckdb

    (folder / "csv").mkdir()
    (folder / "parquet").mkdir()
    found = {"csv": folder / "csv", "parquet": folder / "parquet", "duck": folder / "c.duckdb", "lite": folder / "d.sqlite"}  # fmt: skip
    with duckdb.connect(str(found["duck"])) as made:
        made.execute("CREATE TABLE visits (ward VARCHAR, age INTEGER, pay DECIMAL(12,2), x DOUBLE, seen DATE)")
        made.executemany("INSERT INTO visits VALUES (?, ?, ?, ?, ?)", ROWS)
        made.execute(f"COPY visits TO '{found['csv'] / 'visits.csv'}'")
        made.execute(f"COPY visits TO '{found['parquet'] / 'visits.parquet'}'")
    with sqlite3.connect(found["lite"]) as lite:
        lite.execute("CREATE TABLE visits (ward TEXT, age INT, pay DECIMAL(12,2), x REAL, seen DATE)")
        lite.executemany("INSERT INTO visits VALUES (?, ?, ?, ?, ?)", [(a, b, float(c), d, e and e.isoformat()) for a, b, c, d, e in ROWS])  # fmt: skip
    lite.close()
    return found


def test_all_sources_answer_as_one_database(tmp_path: Path) -> None:
    with connect(silos=fill(tmp_path), policy=POLICY) as db:
        found = db.sql("SELECT ward, seen, count(*) AS n, sum(pay) AS total, avg(age) FROM visits GROUP BY ward, seen ORDER BY ward")  # fmt: skip
        assert [row[:3] for row in found.rows] == [("A", datetime.date(2024, 1, 31), 4), ("B", None, 4)]
        assert [float(row[3]) for row in found.rows] == [42.0, -1.0]
        assert found.rows[1][4] is None
        assert db.sql("SELECT sum(pay) FROM visits WHERE seen >= DATE '2024-01-01'").rows[0][0] == 42
    lone = open_silo(tmp_path / "d.sqlite", POLICY)
    assert lone.read_schema()["visits"] == {"ward": "VARCHAR", "age": "BIGINT", "pay": "DECIMAL(12,2)", "x": "DOUBLE", "seen": "DATE"}  # fmt: skip
    lone.close()


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    places = {"a": tmp_path / "a" / "visits.csv", "b": tmp_path / "b" / "visits.csv"}
    for place in places.values():
        place.parent.mkdir()
        place.write_text("x,empty\n1,\n2,\n")
    with connect(silos=places, policy=POLICY) as db:
        assert db.sql("SELECT sum(x), count(empty) FROM visits").rows == [(6, 0)]
        places["b"].write_text("x,empty\n1,\n2,\n40,5\n")
        assert db.sql("SELECT sum(x), sum(empty) FROM visits").rows == [(46, 5)]


@pytest.mark.parametrize("name", ["csv", "parquet", "duck", "lite"])
def test_a_silo_reaches_nothing_but_its_tables(tmp_path: Path, name: str) -> None:
    place = fill(tmp_path)[name]
    other = tmp_path / "other.csv"
    other.write_text("x\n1\n")
    silo = open_silo(place, POLICY)
    assert silo.run_all(['SELECT count(*) FROM main."visits"'], ["visits"]) == [[(2,)]]
    for text in (
        f"SELECT * FROM read_csv('{other}')",
        f"COPY main.visits TO '{tmp_path / 'out.csv'}'",
        f"ATTACH '{tmp_path / 'new.db'}'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "SET threads = 9",
    ):
        with pytest.raises(TaskError, match="a statement failed with"):
            silo.run_all([text], ["visits"])
    assert not (tmp_path / "out.csv").exists()
    assert not (tmp_path / "new.db").exists()
    assert silo.run_all(['SELECT count(*) FROM main."visits"'], ["visits"]) == [[(2,)]]
    silo.close()


def test_a_database_files_tables_cannot_be_changed(tmp_path: Path) -> None:
    silo = open_silo(fill(tmp_path)["duck"], POLICY)
    for text in ("DELETE FROM main.visits", "CREATE TABLE main.more (x INT)", "DROP TABLE main.visits"):
        with pytest.raises(TaskError, match="InvalidInputException"):
            silo.run_all([text], ["visits"])
    silo.close()


def test_sqlite_only_reads(tmp_path: Path) -> None:
    source = SQLiteFile(fill(tmp_path)["lite"])
    with source.opened() as connection:
        assert connection.execute("SELECT count(*) FROM visits").fetchone() == (2,)
        for text in (
            f"ATTACH '{tmp_path / 'new.db'}' AS n",
            "INSERT INTO visits VALUES (1, 2, 3, 4, 5)",
            "PRAGMA journal_mode = wal",
            "SELECT load_extension('x')",
        ):
            with pytest.raises(sqlite3.DatabaseError, match=r"not authorized|prohibited"):
                connection.execute(text)
    assert not (tmp_path / "new.db").exists()


def test_sqlites_cells_are_held_to_their_columns_type(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE visits (age INT)")
        made.executemany("INSERT INTO visits VALUES (?)", [(1,), ("secret",)])
    made.close()
    silo = open_silo(path, POLICY)
    with pytest.raises(DataError, match=r"row 2 of visits\.age holds a str where the column is BIGINT") as found:
        silo.run_all(["SELECT 1"], ["visits"])
    assert "secret" not in str(found.value)
    silo.close()
    assert [type_of_declared(one) for one in ("decimal(9, 2)", "VARCHAR(20)", "datetime", "", "double precision")] == ["DECIMAL(9,2)", "VARCHAR", "TIMESTAMP", "", "DOUBLE"]  # fmt: skip


def test_limits_end_a_statement_and_the_silo_answers_the_next(tmp_path: Path) -> None:
    silo = open_silo(fill(tmp_path)["parquet"], QueryPolicy(seconds=0.3, memory=64 << 20))
    with pytest.raises(TaskError, match=r"more than 0\.3 seconds"):
        silo.run_all(["SELECT count(*) FROM range(1000000000) a, range(1000000) b WHERE a.range % 7 = b.range % 11"], ["visits"])  # fmt: skip
    slow = QueryPolicy(memory=64 << 20)
    silo.policy = slow
    assert silo.run_all(["SELECT 1"], ["visits"]) == [[(1,)]]
    with pytest.raises(TaskError, match="OutOfMemoryException"):
        silo.run_all(["SELECT count(*) FROM (SELECT DISTINCT range, range + 1 FROM range(30000000)) q"], ["visits"])
    assert silo.run_all(["SELECT 1"], ["visits"]) == [[(1,)]]
    silo.close()


ENDLESS = "CREATE VIEW endless AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n FROM r"
PAIRS = "CREATE VIEW pairs AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 1000000) SELECT count(*) AS n FROM r a, r b WHERE a.n % 7 = b.n % 11"


@pytest.mark.parametrize("name", ["duck", "lite"])
@pytest.mark.parametrize("view", [ENDLESS, PAIRS], ids=["endless", "pairs"])
def test_views_without_end_meet_the_limits_and_the_next_statement_is_answered(tmp_path: Path, name: str, view: str) -> None:  # fmt: skip
    """A view is its owner's; SQL of an analyst has no recursion. DuckDB only runs it when it is asked for, SQLite also to see what its columns hold."""
    place, table = fill(tmp_path)[name], view.split()[2]
    with contextlib.closing(duckdb.connect(str(place)) if name == "duck" else sqlite3.connect(place)) as made:
        made.execute(view)
    silo = open_silo(place, QueryPolicy(seconds=0.3, memory=64 << 20))
    with pytest.raises(TaskError, match=r"took more than 0\.3 seconds|OutOfMemoryException"):
        silo.run_all([f"SELECT count(*) FROM main.{table}"], [table])
    if name == "lite":
        with pytest.raises(TaskError, match=r"took more than 0\.3 seconds"):
            silo.read_schema()
        with contextlib.closing(sqlite3.connect(place)) as made:
            made.execute(f"DROP VIEW {table}")
    silo.policy = QueryPolicy()
    assert "visits" in silo.read_schema()
    assert silo.run_all(["SELECT count(*) FROM main.visits"], ["visits"]) == [[(2,)]]
    silo.close()


def test_a_table_of_sqlite_that_is_larger_than_the_memory_is_refused(tmp_path: Path) -> None:
    """It is copied a batch at a time, so its rows are never all in memory."""
    with contextlib.closing(sqlite3.connect(tmp_path / "x.sqlite")) as made:
        made.execute("CREATE TABLE small (n INT, t TEXT)")
        made.executemany("INSERT INTO small VALUES (?, ?)", [(k, "x" * 500) for k in range(400)])
        made.execute("CREATE VIEW large AS SELECT a.t FROM small a, small b")
        made.commit()
    silo = open_silo(tmp_path / "x.sqlite", QueryPolicy(seconds=60, memory=32 << 20))
    with pytest.raises(TaskError, match="OutOfMemoryException"):
        silo.run_all(["SELECT 1"], ["large"])
    silo.policy = QueryPolicy()
    assert silo.run_all(["SELECT sum(n) FROM main.small"], ["small"]) == [[(79800,)]]
    silo.close()


def test_errors_of_a_database_do_not_quote_rows(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    path.write_text("name\ncanary-7\n")
    silo = open_silo(path, POLICY)
    with pytest.raises(TaskError, match="ConversionException") as found:
        silo.run_all(['SELECT CAST(name AS INTEGER) FROM main."visits"'], ["visits"])
    assert "canary" not in str(found.value)
    assert found.value.__cause__ is None
    silo.close()


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"tables": {"t": {"columns": {"x": "secret"}}}}, r"level: 'secret'.* \(in policy: tables\.t\.columns\.x\)"),
        ({"tables": {"t": {"columns": {"x": {"level": "private", "release": "sum"}}}}}, "release: 'sum'"),
        ({"tables": {"t": {"colums": {}}}}, "colums: there is no such setting. Did you mean 'columns'"),
        ({"tables": {"t": {"mode": "sideways"}}}, "mode: 'sideways'"),
        ({"policy": {"min_count": 0}}, r"min_count: 0 \(in policy: policy\)"),
        ({"limits": {"memory": "2 pounds"}}, "memory: '2 pounds'"),
        ({"tables": {"t": {"columns": {"x": {"range": [3, 1]}}}}}, r"range: \[3, 1\]"),
        ({"tables": []}, r"\[\] where settings by name are expected"),
    ],
)
def test_a_policy_says_what_is_wrong_and_where(given: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        QueryPolicy.of(given)


def test_a_policy_is_read_from_yaml(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        "limits: {seconds: 3, memory: 2GiB}\npolicy: {min_count: 5}\ntables:\n  cities: {mode: horizontal, unit: id, sizes: hidden,\n"
        "    columns: {id: protected, country: public, pay: {level: private, release: aggregate, range: [0, 9.9e5], scale: 0.01, trusted: [regulator]}}}\n"
        "  nation: {mode: replicated, columns: public}\n"
    )
    found = QueryPolicy.read(path)
    assert (found.min_count, found.seconds, found.memory) == (5, 3.0, 2 << 30)
    assert (found.table("CITIES").unit, found.table("cities").column("other").level) == ("id", "private")
    assert found.table("cities").column("pay").high == 9.9e5
    assert (found.table("nation").mode, found.table("nation").column("x").level) == ("replicated", "public")
    path.write_text("policy: [")
    with pytest.raises(ConfigError, match="this is not YAML"):
        QueryPolicy.read(path)


def test_silos_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such folder or file"):
        open_silo(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(AtollError, match="no CSV or Parquet file"):
        open_silo(tmp_path / "empty").read_schema()


def test_a_policy_from_a_pipe_is_that_of_all_silos(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "p.csv").write_text("id,ward\n1,A\n2,B\n")
    reader, writer = os.pipe()
    os.write(writer, b"policy: {min_count: 3}\ntables: {p: {columns: {ward: public}}}\n")
    os.close(writer)
    with connect(silos={"a": tmp_path / "a", "b": tmp_path / "b"}, policy=f"/dev/fd/{reader}") as db:
        assert (db.policy().min_count, db.policy().table("p").column("ward").level) == (3, "public")
    os.close(reader)


def test_one_folder_under_two_names_is_said(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "p.csv").write_text("id,ward\n1,A\n2,B\n")
    (tmp_path / "c").symlink_to(tmp_path / "a")
    with connect(silos={"a": tmp_path / "a", "b": str(tmp_path / "b")}):
        pass  # equal tables of two folders are no mistake that a path shows
    with (
        pytest.warns(RuntimeWarning, match=r"the silos 'a' and 'c' are both '.*c', and each row counts twice"),
        connect(silos={"a": tmp_path / "a", "b": tmp_path / "b", "c": f"{tmp_path}/b/../c"}),
    ):
        pass


def test_a_statement_that_is_stopped_while_files_are_read_finds_no_fault_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    (tmp_path / "p.csv").write_text("ward\nA\nB\n")

    class Stopped:
        """A connection that somebody interrupts at each query."""

        def interrupt(self) -> None: ...

        def close(self) -> None: ...

        def execute(self, text: str) -> None:
            raise duckdb.InterruptException(f"INTERRUPT Error: {text}")

    with contextlib.closing(open_silo(tmp_path)) as silo:
        silo.read_schema()
        with monkeypatch.context() as patched:
            patched.setattr("atoll.query.databases.files.connect_duckdb", lambda **limits: Stopped())
            with pytest.raises(TaskError, match=r"a statement failed with InterruptException.*somebody stopped it"):
                silo.run_all(["SELECT 1"], ["p"])
        assert silo.run_all(["SELECT count(*) FROM p"], ["p"]) == [[(2,)]]
