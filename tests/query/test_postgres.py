"""PostgreSQL as a source of a silo: what it reads, what it refuses, and that a silo stays usable."""

from __future__ import annotations

import contextlib
import datetime
import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from atoll.core.errors import AtollError, DataError, PolicyError, TaskError
from atoll.query import QueryPolicy, Silo, connect, open_silo
from atoll.query.databases.postgres import PostgresDatabase
from tests.query.test_databases import ENDLESS, PAIRS
from tests.support.databases import postgres_cluster  # noqa: F401 - a fixture

pytestmark = pytest.mark.network
POLICY = {"policy": {"min_count": 1}, "tables": {"visits": {"columns": "public"}}}
KINDS = """
create type mood as enum ('good', 'bad');
create table "Every kind" (s smallint, i integer, b bigint, r real, d double precision, n numeric(12,2), f numeric, t text, v varchar(9), c char(4), k boolean, day date,
    seen timestamp, zone timestamptz, clock time, bytes bytea, m mood, u uuid, "quo""ted" integer, empty numeric, list integer[]);
insert into "Every kind" values
    (1, -2, 9007199254740993, 1.5, 0.1, -10.50, 123456789012345678901.25, 'ä', 'x', 'ab', true, '2024-02-29', '2024-01-31 12:30:00.000001', '2024-01-31 12:30:00+02', '23:59', '\\x00ff',
     'bad', '00000000-0000-0000-0000-000000000001', 7, null, '{1,2}'),
    (null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null);
create view visits as select i as age, n as pay from "Every kind";
"""


@pytest.fixture(scope="module")
def kinds(postgres_cluster: Any) -> tuple[Any, str]:  # noqa: F811
    name = postgres_cluster.database(KINDS, "query_reader")
    return postgres_cluster, postgres_cluster.uri(name, "query_reader")


def look(uri: str) -> None:
    with contextlib.closing(open_silo(uri, POLICY)) as silo:
        silo.read_schema()


def test_every_kind_of_column_is_read(kinds: tuple[Any, str]) -> None:
    silo = open_silo(kinds[1], POLICY)
    try:
        schema = silo.read_schema()
        assert silo.name.startswith("made_")
        assert sorted(schema) == ["Every kind", "visits"]
        assert schema["Every kind"] == {
            "s": "SMALLINT", "i": "INTEGER", "b": "BIGINT", "r": "FLOAT", "d": "DOUBLE", "n": "DECIMAL(12,2)", "f": "DECIMAL(23,2)", "t": "VARCHAR", "v": "VARCHAR", "c": "VARCHAR",
            "k": "BOOLEAN", "day": "DATE", "seen": "TIMESTAMP", "zone": "TIMESTAMP WITH TIME ZONE", "clock": "TIME", "bytes": "BLOB", "m": "VARCHAR", "u": "VARCHAR", 'quo"ted': "INTEGER",
            "empty": "NULL", "list": "VARCHAR",
        }  # fmt: skip
        rows = silo.run_all(['SELECT * EXCLUDE (zone), epoch(zone) FROM main."Every kind" ORDER BY i NULLS LAST'], ["Every kind"])[0]  # fmt: skip
        assert rows[0] == (
            1, -2, 9007199254740993, 1.5, 0.1, Decimal("-10.50"), Decimal("123456789012345678901.25"), "ä", "x", "ab", True, datetime.date(2024, 2, 29),
            datetime.datetime(2024, 1, 31, 12, 30, 0, 1), datetime.time(23, 59), b"\x00\xff", "bad", "00000000-0000-0000-0000-000000000001", 7, None, "{1,2}", 1706697000.0,
        )  # fmt: skip
        assert set(rows[1]) == {None}
    finally:
        silo.close()


def test_it_answers_beside_the_other_databases(kinds: tuple[Any, str], tmp_path: Path) -> None:
    (tmp_path / "visits.csv").write_text("age,pay\n30,1.25\n")
    with sqlite3.connect(tmp_path / "w.sqlite") as lite:
        lite.execute("CREATE TABLE visits (age INT, pay DECIMAL(12,2))")
        lite.execute("INSERT INTO visits VALUES (2, 3.5)")
    lite.close()
    silos = {"a": tmp_path / "visits.csv", "b": kinds[1], "c": tmp_path / "w.sqlite"}
    with connect(silos=silos, policy=POLICY) as db:
        assert db.sql("SELECT count(*), sum(age), count(pay) FROM visits").rows == [(4, 30, 3)]


def test_a_table_that_changes_is_read_again_and_else_it_is_not(postgres_cluster: Any) -> None:  # noqa: F811
    name = postgres_cluster.database("create table visits as select generate_series(1, 70000) as age", "again_reader")
    silo = open_silo(postgres_cluster.uri(name, "again_reader"), POLICY)
    text = ["SELECT count(*), sum(age) FROM main.visits"]
    assert silo.run_all(text, ["visits"]) == [[(70000, 2450035000)]]
    before = silo._connection
    assert silo.run_all(text, ["visits"]) == [[(70000, 2450035000)]]
    assert silo._connection is before
    postgres_cluster.run("insert into visits values (1)", name)
    assert silo.run_all(text, ["visits"]) == [[(70001, 2450035001)]]
    postgres_cluster.run("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'again_reader'")
    with pytest.raises(DataError, match="it cannot be read"):  # the first to notice
        silo.run_all(text, ["visits"])
    assert silo.run_all(text, ["visits"]) == [[(70001, 2450035001)]]
    silo.close()


def test_limits_end_the_loading_of_a_table(postgres_cluster: Any) -> None:  # noqa: F811
    """A view that takes a minute is interrupted at the server, and the silo answers the next statement."""
    name = postgres_cluster.database("create table visits (age int); create view slow as select pg_sleep(60)::text as x", "slow_reader")  # fmt: skip
    # The source's own limit is longer, so that only the silo's ends it.
    silo = Silo(PostgresDatabase(postgres_cluster.uri(name, "slow_reader"), 60.0), QueryPolicy(seconds=1.0), "slow")
    with pytest.raises(TaskError, match=r"more than 1 seconds"):
        silo.run_all(["SELECT 1"], ["slow"])
    silo.policy = QueryPolicy(seconds=60.0)
    assert silo.run_all(["SELECT count(*) FROM main.visits"], ["visits"]) == [[(0,)]]
    silo.close()


@pytest.mark.parametrize("view", [ENDLESS, PAIRS], ids=["endless", "pairs"])
def test_views_without_end_meet_the_limits_and_the_next_statement_is_answered(postgres_cluster: Any, view: str) -> None:  # noqa: F811
    table = view.split()[2]
    name = postgres_cluster.database(f"create table visits (age int); insert into visits values (3); {view}", f"{table}_reader")  # fmt: skip
    silo = Silo(PostgresDatabase(postgres_cluster.uri(name, f"{table}_reader"), 60.0), QueryPolicy(seconds=0.5, memory=64 << 20), "endless")  # fmt: skip
    with pytest.raises(TaskError, match=r"took more than 0\.5 seconds|OutOfMemoryException"):
        silo.run_all([f"SELECT count(*) FROM main.{table}"], [table])
    silo.policy = QueryPolicy(seconds=60.0)
    assert silo.run_all(["SELECT sum(age) FROM main.visits"], ["visits"]) == [[(3,)]]
    silo.close()


def test_what_a_role_may_and_what_errors_show(postgres_cluster: Any) -> None:  # noqa: F811
    name = postgres_cluster.database("create table visits (n numeric, day date); insert into visits values ('NaN', 'infinity')", "odd_reader")  # fmt: skip
    with pytest.raises(PolicyError, match="the role is 'owner', or in it, and reaches files"):
        look(postgres_cluster.uri(name))
    with pytest.raises(DataError, match=r"visits\.n holds NaN or infinity"):
        look(postgres_cluster.uri(name, "odd_reader"))
    postgres_cluster.run("alter table visits drop column n", name)
    source = PostgresDatabase(postgres_cluster.uri(name, "odd_reader"))
    silo = Silo(source, QueryPolicy.of(POLICY), "odd")
    with pytest.raises(DataError, match="it cannot be read: DataError"):
        silo.run_all(["SELECT 1"], ["visits"])
    for text in ("DELETE FROM visits", "CREATE TABLE more (x int)"):
        with pytest.raises(DataError, match="ReadOnlySqlTransaction"), source._reading() as cursor:
            cursor.execute(text)
    silo.close()
    with pytest.raises(AtollError, match=r"PostgreSQL database 'gone'") as found:
        look(postgres_cluster.uri("gone", "hashed").replace("hashed@", "hashed:canary@"))
    assert "canary" not in str(found.value)
