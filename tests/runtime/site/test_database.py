"""The way to a site's database: what a connection may reach, how the daemon authenticates, and which roles are refused."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atoll.cli import run as command
from atoll.core.errors import DataError, PolicyError
from atoll.runtime.site.database import DatabaseRelay, look_at_database, relaying
from atoll.runtime.worker import load_site_data, site_spec
from atoll.runtime.worker.words import SiteDatabase, database_of, open_database, paths_of
from tests.support.databases import VISITS, Cluster, duckdb_file, sqlite_file

pytestmark = pytest.mark.network

# ---------------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("name", "make"), [("a.sqlite", sqlite_file), ("a.db", sqlite_file), ("a.duckdb", duckdb_file)]
)
def test_a_file_is_read_and_never_written(tmp_path: Path, name: str, make: Callable[[Path], Path]) -> None:
    file = make(tmp_path / name)
    spec = site_spec(name, base=tmp_path)
    assert spec["database"] == str(file)
    assert paths_of(spec, "north") == (file,)
    data = load_site_data(spec, "north")
    connection = data.population.shard(0)
    assert connection.execute("select sum(cost) from visits").fetchone()[0] == 7.5
    with pytest.raises(Exception, match=r"(?i)read.?only"):
        connection.execute("insert into visits values (1)")
    connection.close()
    assert "1 table; a job in a sandbox sees the file" in look_at_database(database_of(str(file)))


def test_a_write_ahead_log_is_seen_with_its_file(tmp_path: Path) -> None:
    place = tmp_path / "clinic"
    place.mkdir()
    file = sqlite_file(place / "a.sqlite", "wal")
    assert database_of(str(file)).list_shown() == (place,)
    assert "sees its folder, which holds its write-ahead log" in look_at_database(database_of(str(file)))
    writer = sqlite3.connect(file)
    writer.execute("insert into visits values (8)")
    writer.commit()
    reader = open_database(database_of(str(file)))
    assert reader.execute("select sum(cost) from visits").fetchone()[0] == 15.5
    reader.close()
    writer.close()
    plain = sqlite_file(tmp_path / "b.sqlite")
    (tmp_path / "b.sqlite-journal").touch()
    assert database_of(str(plain)).list_shown() == (plain, tmp_path / "b.sqlite-journal")


def test_a_factory_gets_the_connection(tmp_path: Path) -> None:
    sqlite_file(tmp_path / "a.sqlite")
    (tmp_path / "made_of_rows.py").write_text(
        "def rows(connection, least):\n    return [row[0] for row in connection.execute('select cost from visits where cost > ?', (least,))]\n"
    )
    (tmp_path / "site.yaml").write_text("database: a.sqlite\nfactory: made_of_rows:rows\narguments: {least: 1.8}\n")
    data = load_site_data(site_spec("site.yaml", base=tmp_path), "north")
    assert (data.population.shard(0), data.sizes) == ([2, 4], (2,))


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ("clinic.mdb", r"is no database that Atoll knows.*\.sqlite"),
        ("none.sqlite", "there is no file"),
        ("postgresql://anna:secret@/clinic", r"'postgresql://anna:…@/clinic' holds a password.*\.pgpass"),
        ("postgresql:///clinic?password=secret", "holds a password"),
        ("postgresql:///", "no database is named"),
        ("postgresql:///clinic?options=-crole%3Downer", "'options' in"),
        ("postgresql://db.example.org/clinic", "'db.example.org' is another machine.*ssh -L"),
        ("postgresql://localhost:port/clinic", "has no port"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(tmp_path: Path, words: str, match: str) -> None:
    with pytest.raises(DataError, match=match) as found:
        database_of(words, tmp_path)
    assert "secret" not in str(found.value).partition("?password")[0]


def test_what_cannot_be_opened_says_why(tmp_path: Path) -> None:
    (tmp_path / "a.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(DataError, match=r"SQLite database 'a\.sqlite'.*atoll doctor KIT --data SPEC|not a database"):
        look_at_database(database_of(str(tmp_path / "a.sqlite")))
    with pytest.raises(DataError, match="only the site's daemon leads there"):
        open_database(database_of("postgresql:///clinic?host=/nowhere"))
    with pytest.raises(DataError, match=r"'/nowhere.*cannot be reached|cannot be reached"):
        look_at_database(database_of("postgresql:///clinic?host=/nowhere"))


# ---------------------------------------------------------------------- PostgreSQL


def test_a_role_that_only_reads_is_led_to_its_database_alone(postgres_cluster: Cluster) -> None:
    name = postgres_cluster.database(VISITS, reader="reads_visits")
    other = postgres_cluster.database("create table secrets (word text)")
    database = database_of(postgres_cluster.uri(name, "reads_visits"))
    psycopg = pytest.importorskip("psycopg")
    assert "1 table that the role may read, and nothing that it may write" in look_at_database(database)
    with relaying(database) as folder:
        assert Path(folder).stat().st_mode & 0o077 == 0
        with open_database(database, folder) as connection:
            assert connection.execute("select sum(cost) from visits").fetchone() == (7.5,)
            postgres_cluster.run("insert into visits values (8)", name)
            assert connection.execute("select sum(cost) from visits").fetchone() == (15.5,)  # it is live
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="read-only transaction"):
                connection.execute("insert into visits values (1)")
            connection.execute("set default_transaction_read_only = off")
            for words in (
                "insert into visits values (1)",
                "create table mine (a int)",
                "select lo_create(0)",
                "set role owner",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied"):
                    connection.execute(words)
        tried = {"host": folder, "port": 5432, "dbname": name, "user": "reads_visits", "sslmode": "disable"}
        for more in ({"dbname": other}, {"dbname": "postgres"}, {"user": "owner"}, {"replication": "database"}):
            with pytest.raises(
                psycopg.OperationalError, match=r"this socket leads to the PostgreSQL database .* alone, and not to"
            ):
                psycopg.connect(**{**tried, **more})
        # What a job asks for at its start is not passed on.
        with psycopg.connect(**tried, options="-c default_transaction_read_only=off", autocommit=True) as connection:
            assert connection.execute("show default_transaction_read_only").fetchone() == ("on",)
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("statement", "match"),
    [
        ("alter role {r} superuser", r"is a superuser.*: {r}\b.*CREATE ROLE another"),
        ("alter role {r} createdb", r"may make roles or databases"),
        ("create role {r}_chief createrole; grant {r}_chief to {r}", r"is in a role that may: {r}_chief"),
        (
            "grant pg_write_all_data to {r}",
            r"is in a role that reaches all data.*REVOKE pg_write_all_data FROM \"{r}\"",
        ),
        ("grant insert on visits to {r}", r"may write: public\.visits.*REVOKE INSERT"),
        ("grant update (cost) on visits to {r}", r"may write: public\.visits"),
        ("alter table visits owner to {r}", r"may write: public\.visits.*let another role own it"),
        (
            "create role {r}_group; grant delete on visits to {r}_group; grant {r}_group to {r}",
            r"may write: public\.visits",
        ),
        ("create sequence numbers; grant usage on sequence numbers to {r}", r"may write: public\.numbers"),
        ("grant create on schema public to {r}", r"may make things in: schema public"),
        ("grant execute on function lo_create(oid) to {r}", r"may make large objects, by: lo_create\(oid\)"),
        (
            "grant connect on database postgres to {r}",
            r"may connect to other databases: postgres.*REVOKE CONNECT ON DATABASE postgres",
        ),
    ],
)
def test_a_role_that_may_write_or_see_more_is_refused(
    postgres_cluster: Cluster, statement: str, match: str, request: pytest.FixtureRequest
) -> None:
    role = f"role_{request.node.callspec.indices['statement']}"
    name = postgres_cluster.database(VISITS, reader=role)
    database = database_of(postgres_cluster.uri(name, role))
    look_at_database(database)
    postgres_cluster.run(statement.format(r=role), name)
    with pytest.raises(PolicyError, match=match.replace("{r}", role)):
        look_at_database(database)


@pytest.mark.parametrize("role", ["hashed", "old", "plain"])
def test_the_daemon_says_the_password_and_the_job_never_sees_it(
    postgres_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    name = postgres_cluster.database(VISITS, reader=role)
    kind = "md5" if role == "old" else "scram-sha-256"
    postgres_cluster.run(f"set password_encryption = '{kind}'; alter role {role} password 'key:of\\north'")
    database = database_of(postgres_cluster.uri(name, role))
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "pgpass"))
    monkeypatch.delenv("PGPASSWORD", raising=False)
    with pytest.raises(DataError, match=r"wants a password: put it into .*pgpass, which only its owner may read"):
        look_at_database(database)
    kept = tmp_path / "pgpass"
    kept.write_text(f"elsewhere:*:*:{role}:wrong\nlocalhost:5432:*:{role}:key\\:of\\\\north\n")
    kept.chmod(0o644)
    with pytest.raises(DataError, match="wants a password"):
        look_at_database(database)
    kept.chmod(0o600)
    assert "1 table" in look_at_database(database)
    monkeypatch.setenv("PGPASSWORD", "wrong")
    with pytest.raises(DataError, match="password authentication failed"):
        look_at_database(database)


def test_a_server_that_does_not_know_the_password_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can make the socket in the server's place learns no password, and is not believed."""
    monkeypatch.setenv("PGPASSWORD", "key")

    async def pretends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def says(kind: int, content: bytes = b"") -> None:
            writer.write(b"R" + struct.pack(">II", len(content) + 8, kind) + content)

        async def hears() -> bytes:
            return await reader.readexactly(struct.unpack(">I", await reader.readexactly(4))[0] - 4)

        await hears()
        says(10, b"SCRAM-SHA-256\0\0")
        await reader.readexactly(1)
        nonce = (await hears()).decode().partition("r=")[2]
        says(11, f"r={nonce}more,s=c2FsdA==,i=4096".encode())
        await reader.readexactly(1)
        await hears()
        says(12, b"v=bm8gc2lnbmF0dXJlIG9mIG1pbmU=")
        says(0)
        writer.close()

    async def main() -> None:
        server = await asyncio.start_unix_server(pretends, str(tmp_path / ".s.PGSQL.5432"))
        async with server:
            relay = DatabaseRelay(SiteDatabase("PostgreSQL", tmp_path, "clinic", "anna"))
            at = await relay.start()
            try:
                with pytest.raises(DataError, match="the server does not know the role's password"):
                    await asyncio.to_thread(
                        open_database, SiteDatabase("PostgreSQL", tmp_path, "clinic", "anna"), str(at.folder)
                    )
            finally:
                await relay.close()

    asyncio.run(main())


def test_what_is_no_greeting_is_refused_and_left_sockets_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / "atoll-db-left"
    left.mkdir()
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(left / ".s.PGSQL.5432"))
    with (
        relaying(SiteDatabase("PostgreSQL", tmp_path, "clinic", "anna")) as folder,
        relaying(SiteDatabase("PostgreSQL", tmp_path, "a", "b")) as again,
    ):
        assert not left.exists()
        assert Path(again).exists()
        for words in (
            struct.pack(">II", 1 << 20, 3 << 16),
            struct.pack(">II", 16, 80877102) + b"12345678",
            b"GET / HTTP/1.1\r\n",
        ):
            with socket.socket(socket.AF_UNIX) as one:
                one.connect(f"{folder}/.s.PGSQL.5432")
                one.sendall(words)
                assert b"no greeting of PostgreSQL" in one.recv(1 << 12)


def test_the_doctor_looks_at_the_database_of_a_site(
    postgres_cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project.yaml").write_text(
        "project: p\nservers: [{name: server, hosts: [127.0.0.1], listen: 127.0.0.1}]\nsites: [{name: north, org: n}]\n"
        "admins: [{name: anna, org: lab}]\n"
    )
    assert command(["provision", str(tmp_path / "project.yaml"), "--out", str(tmp_path / "kits")]) == 0
    name = postgres_cluster.database(VISITS, reader="seen_by_doctor")
    (tmp_path / "site.yaml").write_text(f"database: {postgres_cluster.uri(name, 'seen_by_doctor')}\n")
    kit = str(tmp_path / "kits" / "north")
    shown: dict[str, Any] = {}
    for user in ("seen_by_doctor", "owner"):
        capsys.readouterr()
        (tmp_path / "site.yaml").write_text(f"database: {postgres_cluster.uri(name, user)}\n")
        command(["doctor", kit, "--data", str(tmp_path / "site.yaml"), "--timeout", "0.1"])
        said = capsys.readouterr()
        shown[user] = " ".join((said.out + said.err).split())
    assert "1 table that the role may read" in shown["seen_by_doctor"]
    assert "the role 'owner' is a superuser" in shown["owner"]
    assert command(["site", kit, "--data", str(tmp_path / "site.yaml"), "--folder", str(tmp_path / "run")]) != 0
    said = capsys.readouterr()
    assert "the role 'owner' is a superuser" in " ".join((said.out + said.err).split())
