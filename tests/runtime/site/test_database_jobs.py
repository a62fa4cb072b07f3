"""Jobs on live databases, with real processes in a sandbox: they read them, and reach nothing else."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

import pytest

from atoll.runtime.admin import Admin
from tests.support.databases import VISITS, Cluster, duckdb_file, sqlite_file
from tests.support.walls import PLAIN, SANDBOX, Walled, open_folder, played, told, write_job

pytestmark = pytest.mark.network
CONFINED = ["--confine", "always"]
READER = """
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import atoll


def tried(what):
    try:
        return str(what())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


UNLOCK = "set default_transaction_read_only = off", "insert into visits values (100)"


def attempts(connection, name, words):
    kind = type(connection).__module__.partition(".")[0]
    yield "insert", lambda: connection.execute("insert into visits values (100)")
    yield "drop", lambda: connection.execute("drop table visits")
    yield "tcp", lambda: socket.create_connection(("127.0.0.1", words["port"]), 2).close()
    yield "server's socket", lambda: socket.socket(socket.AF_UNIX).connect(words["real"])
    yield "daemon's folder", lambda: os.listdir(words["run"] + "/server")
    if kind == "psycopg":
        import psycopg

        known = connection.info.get_parameters()
        yield "unlocked", lambda: [connection.execute(words) for words in UNLOCK]
        yield "other database", lambda: psycopg.connect(**{**known, "dbname": words["other"]})
        yield "other role", lambda: psycopg.connect(**{**known, "user": "owner"})
        yield "program", lambda: connection.execute("copy visits to program 'true'")
        return
    file = Path(words["files"][name])
    yield "written", lambda: file.write_bytes(b"gone")
    yield "beside", lambda: (file.parent / "more").write_bytes(b"more")  # in a folder of the sandbox's own, if at all
    yield "neighbour", lambda: (file.parent.parent / "other" / "other.sqlite").read_bytes()
    if kind == "sqlite3":
        import sqlite3

        yield "opened to write", lambda: sqlite3.connect(file).execute("insert into visits values (100)")
    else:
        words = [sys.executable, "-c", f"import duckdb; duckdb.connect({str(file)!r}).execute('insert into visits values (100)')"]
        yield "opened to write", lambda: subprocess.run(words, check=True, capture_output=True)


@atoll.task
def total(island, message):
    (found,) = island.data.execute("select sum(cost) from visits").fetchone()
    return {"cost": atoll.Sum(float(found))}


@atoll.task
def tries(island, message):
    print("tried", json.dumps({name: tried(what) for name, what in attempts(island.data, island.party.name, message)}), flush=True)
    (found,) = island.data.execute("select sum(cost) from visits").fetchone()
    return {"cost": atoll.Sum(float(found))}


@atoll.task
async def meets(island, peers):
    (found,) = island.data.execute("select max(cost) from visits").fetchone()
    names = [name for name in ("lite", "logs", "duck", "post") if name != island.party.name]
    for name in names:
        await peers.send(name, float(found))
    return sum([float(await peers.recv(name)) for name in names])


async def run(fed, words):
    first = await fed.sum(fed.parties, total)
    again = await fed.sum(fed.parties, tries, words)
    most = await fed.session({name: (name, meets) for name in ("lite", "logs", "duck", "post")})
    print("sums", json.dumps([float(first["cost"]), float(again["cost"]), sorted(most.values())]), flush=True)
"""


@SANDBOX
def test_a_job_reads_each_kind_of_database_and_reaches_nothing_else(tmp_path: Path, postgres_cluster: Cluster) -> None:
    name = postgres_cluster.database(VISITS, reader="reads_for_jobs")
    other = postgres_cluster.database("create table secrets (word text)")
    with open_folder() as folder:
        walled = Walled(folder, ("lite", "logs", "duck", "post"))
        places = {kind: folder / "data" / kind for kind in ("lite", "logs", "duck", "other")}
        places["other"].mkdir()
        files = {
            "lite": sqlite_file(places["lite"] / "clinic.sqlite"),
            "logs": sqlite_file(places["logs"] / "clinic.sqlite", "wal"),
            "duck": duckdb_file(places["duck"] / "clinic.duckdb"),
        }
        sqlite_file(places["other"] / "other.sqlite")
        for path in (*places.values(), *files.values(), places["other"] / "other.sqlite"):
            if os.geteuid() == 0:
                os.chown(path, PLAIN, PLAIN)
        paths = {site: str(file) for site, file in files.items()}
        data = {**paths, "post": postgres_cluster.uri(name, "reads_for_jobs")}
        walled.options = {site: ["--data", spec, *CONFINED] for site, spec in data.items()} | {"server": CONFINED}
        before = {kind: file.read_bytes() for kind, file in files.items() if kind != "logs"}
        real = str(postgres_cluster.folder / ".s.PGSQL.5432")
        words = {"port": 1, "real": real, "run": str(folder / "run"), "other": other, "files": paths}
        job = write_job(tmp_path / "reads", READER, arguments={"words": words})

        async def body(admin: Admin) -> None:
            with contextlib.closing(sqlite3.connect(files["logs"])) as writer:
                writer.execute("insert into visits values (0)")
                writer.commit()
            assert not list(places["logs"].glob("*-wal"))  # nobody has it open, so its log is gone
            said = await walled.run(admin, job)
            assert told(said["server"], "sums") == [30.0, 30.0, [12.0] * 4]
            tried = {site: told(said[site], "tried") for site in data}
            for site, found in tried.items():
                assert (
                    "ead-only" in found["insert"]
                    or "readonly" in found["insert"]
                    or "read-only mode" in found["insert"]
                ), (site, found)
                assert "None" not in found.values(), (site, found)
                assert "<" not in "".join(value[:1] for value in found.values()), (
                    site,
                    found,
                )  # a cursor: it went through
                assert found["tcp"].startswith(("ConnectionRefusedError", "OSError")), found
                assert found["server's socket"].startswith("FileNotFoundError"), found
                assert found["daemon's folder"].startswith("FileNotFoundError"), found
            assert tried["post"]["unlocked"].startswith("InsufficientPrivilege")
            assert f"alone, and not to '{other}'" in tried["post"]["other database"]
            assert "alone, and not to" in tried["post"]["other role"]
            assert tried["post"]["program"].startswith(("InsufficientPrivilege", "ReadOnlySqlTransaction"))
            for site in paths:
                assert "Read-only file system" in tried[site]["written"]
                assert tried[site]["neighbour"].startswith("FileNotFoundError")
            assert "readonly database" in tried["lite"]["opened to write"]
            assert tried["duck"]["opened to write"].startswith("CalledProcessError")

        played(walled, body)
        assert not list(folder.rglob("more"))
        assert {kind: files[kind].read_bytes() for kind in before} == before
        with postgres_cluster.connect(name) as connection:
            assert connection.execute("select sum(cost) from visits").fetchone() == (7.5,)
        assert not list(Path("/tmp").glob("atoll-db-*"))
