"""Databases for tests: files of SQLite and DuckDB, and a PostgreSQL server of the tests' own.

The server is made when a test first asks for it, in a temporary folder, and listens at a Unix socket alone. ``postgres_cluster`` is the fixture. It is skipped, by name, where PostgreSQL or psycopg is not installed. Each test makes a database of its own
with `Cluster.database`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import shutil
import signal
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

__all__ = ["VISITS", "Cluster", "duckdb_file", "postgres_cluster", "sqlite_file"]

VISITS = "create table visits (cost double precision); insert into visits values (1.5), (2), (4)"
"""A table whose costs are 7.5 together."""


def sqlite_file(path: Path, mode: str = "delete") -> Path:
    """A file of SQLite with the table `VISITS`; ``mode`` is its journal's."""
    made = sqlite3.connect(path)
    made.execute(f"pragma journal_mode={mode}")
    made.execute("create table visits (cost real)")
    made.executemany("insert into visits values (?)", [(1.5,), (2,), (4,)])
    made.commit()
    made.close()
    return path


def duckdb_file(path: Path) -> Path:
    """A file of DuckDB with the table `VISITS`."""
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(str(path)) as made:
        made.execute(VISITS)
    return path


NOBODY = 65534
"""The user of the server where tests run as root: it refuses to be root's."""
_WAYS = "local all hashed scram-sha-256\nlocal all old md5\nlocal all plain password\nlocal all all trust\n"
"""pg_hba.conf: anybody of this machine is any role, but these have to say a password."""
_QUICK = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "40",
    "listen_addresses": "",
}


@functools.cache
def _programs() -> Path | None:
    """The folder of PostgreSQL's programs, of the newest version; Debian keeps them off the path."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    kept = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return kept[-1].parent if kept else None


def why_missing() -> str:
    """What is not installed here; nothing if all is."""
    if _programs() is None:
        return "PostgreSQL is not installed: apt-get install postgresql"
    if importlib.util.find_spec("psycopg") is None:
        return 'psycopg is not installed: pip install "atoll[postgres]"'
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        return "PostgreSQL does not run as root, and there is no setpriv here to be another user"
    return ""


def _as_plain_user(*more: str) -> list[str]:
    if os.geteuid() != 0:
        return []
    return [
        shutil.which("setpriv") or "setpriv",
        f"--reuid={NOBODY}",
        f"--regid={NOBODY}",
        "--clear-groups",
        *more,
        "--",
    ]


class Cluster:
    """A server with its databases.

    Attributes:
        folder: of its socket.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._programs = _programs() or Path()
        self._made = 0
        folder.chmod(0o755)
        place = folder / "data"
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        words = ["-D", str(place), "-U", "owner", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]
        self._run("initdb", *words)
        for name, text in (("pg_hba.conf", _WAYS), ("postgresql.auto.conf", self._settings())):
            (place / name).write_text(text, encoding="utf-8")
        command = [*_as_plain_user("--pdeathsig", "INT"), str(self._programs / "postgres"), "-D", str(place)]
        with (folder / "log").open("wb") as log:
            self._server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, start_new_session=True)
        self._run("pg_isready", "-h", str(folder), "-U", "owner", tries=200)
        for name in ("postgres", "template1"):  # as an operator does whose readers see one database
            self.run(f"revoke connect on database {name} from public")

    def _settings(self) -> str:
        return "".join(
            f"{name} = '{value}'\n" for name, value in {**_QUICK, "unix_socket_directories": str(self.folder)}.items()
        )

    def _run(self, program: str, *words: str, tries: int = 1) -> None:
        done = None
        for _ in range(tries):
            command = [*_as_plain_user(), str(self._programs / program), *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.folder, timeout=60)
            if done.returncode == 0:
                return
            if tries > 1 and self._server.poll() is not None:
                raise RuntimeError((self.folder / "log").read_text(errors="replace")[-2000:])
            if tries > 1:
                self._server_waits()
        raise RuntimeError(f"{program}: {done.stderr if done else ''}")

    def _server_waits(self) -> None:
        try:
            self._server.wait(0.05)
        except subprocess.TimeoutExpired:
            return

    def uri(self, name: str, user: str = "owner") -> str:
        """How a site's settings name a database."""
        return f"postgresql://{user}@/{name}?host={self.folder}"

    def connect(self, name: str = "postgres", user: str = "owner", **more: Any) -> Any:
        """A connection of psycopg's, each statement of which is a transaction of its own."""
        return importlib.import_module("psycopg").connect(
            host=str(self.folder), dbname=name, user=user, autocommit=True, **more
        )

    def run(self, script: str, name: str = "postgres") -> None:
        """Run statements as the owner of all."""
        with self.connect(name) as connection:
            connection.execute(script)

    def database(self, script: str = "", reader: str = "") -> str:
        """Make a database, run statements in it, and make a role that may read all its tables and do nothing else; the database's name.

        Args:
            script: statements, run as the owner.
            reader: the role's name.
        """
        self._made += 1
        name = f"made_{os.getpid()}_{self._made}"
        self.run(f"create database {name}")
        self.run(f"revoke connect on database {name} from public")
        if script:
            self.run(script, name)
        if reader:
            self.run(
                f"create role {reader} login; grant usage on schema public to {reader}; grant select on all tables in schema public to {reader};"
                "revoke create on schema public from public; revoke execute on function lo_creat(integer), lo_create(oid), "
                "lo_from_bytea(oid, bytea) from public",
                name,
            )
            self.run(f"grant connect on database {name} to {reader}")
        return name

    def stop(self) -> None:
        """End it, with all connections."""
        if self._server.poll() is None:
            self._server.send_signal(signal.SIGQUIT)  # at once: nothing is kept
            try:
                self._server.wait(20)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[Cluster]:
    """A server for this process of the tests, which begins when the first test asks for it."""
    missing = why_missing()
    if missing:
        pytest.skip(missing)
    folder = Path(tempfile.mkdtemp(prefix="atoll-pg-"))
    try:
        made = Cluster(folder)
        try:
            yield made
        finally:
            made.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
