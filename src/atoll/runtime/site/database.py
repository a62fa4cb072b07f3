"""The way from a job to a site's PostgreSQL database: a Unix socket of the daemon that leads to one database, as one role, which only reads.

The daemon authenticates and then relays bytes, so a job's process has neither a network nor a password. Whatever the job asks for at its
start, the server is told this database, this role, and transactions that only read. What a role may do beyond that is the database's own to
say: `look_at_database` refuses roles that may write, or see another database.

Messages: PostgreSQL 15 documentation, chapter 55; SCRAM-SHA-256: RFC 5802 and RFC 7677.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import os
import secrets
import stat
import struct
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from atoll.core.errors import DataError, PolicyError
from atoll.runtime.provision import Kit

from ..daemon.job_start import JobSocket
from ..worker.words import PORT, SiteDatabase, database_of, open_database, settings_of

__all__ = ["DatabaseRelay", "LogHolder", "look_at_database", "look_at_settings", "open_way", "relaying"]

_VERSION, _TLS, _GSS = 3 << 16, 80877103, 80877104
_LONGEST = 1 << 16
"""Bytes of the longest message before a connection is authenticated."""
_AT_ONCE = 16
"""Connections that a job may have."""
_PATIENCE = 10.0
_CHUNK = 1 << 16
_KEPT = ("client_encoding", "application_name", "DateStyle", "TimeZone", "IntervalStyle")
"""Of what a job says at its start, what the server is told."""


class DatabaseRelay:
    """A Unix socket that leads to a PostgreSQL database.

    Args:
        database: the database.

    Attributes:
        socket: where it listens, once it has started; only this user may enter the folder.
    """

    name: str = f".s.PGSQL.{PORT}"
    """The name of a socket of PostgreSQL."""

    def __init__(self, database: SiteDatabase) -> None:
        self.socket: JobSocket | None = None
        self._database = database
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[Any]] = set()

    async def start(self, at: JobSocket | None = None) -> JobSocket:
        """Listen.

        Args:
            at: where; by default at a new socket.

        Raises:
            DataError: no socket can be made.
        """
        try:
            here = await asyncio.to_thread(JobSocket.make, self.name) if at is None else at
            self.socket = here
            self._server = await asyncio.start_unix_server(self._serve, sock=here.socket)
        except OSError as error:
            raise DataError(
                f"no socket can be made that leads there: {error.strerror or error}",
                where=str(self._database),
                remedy=f"let `atoll site` write to {tempfile.gettempdir()}",
            ) from error
        return here

    async def close(self) -> None:
        """End all connections and remove the socket."""
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        if self.socket is not None:
            await asyncio.to_thread(self.socket.close)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._open.add(task)
        try:
            with contextlib.suppress(OSError, EOFError, TimeoutError, asyncio.CancelledError):
                await self._lead(reader, writer)
        finally:
            self._open.discard(task)
            writer.close()

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Let a connection begin, and carry what it says until one end closes."""
        try:
            async with asyncio.timeout(_PATIENCE):
                if len(self._open) > _AT_ONCE:
                    raise _Refused("53300", f"this job has {_AT_ONCE} connections already")
                said = await _greeting(reader, writer)
                self._require_allowed(said)
                answering, asking = await self._connect({key: said[key] for key in _KEPT if key in said})
        except _Refused as error:
            writer.write(error.message())
            await writer.drain()
            return
        writer.write(_message(b"R", struct.pack(">I", 0)))
        both = [asyncio.create_task(_carry(reader, asking)), asyncio.create_task(_carry(answering, writer))]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            asking.close()

    def _require_allowed(self, said: dict[str, str]) -> None:
        """Refuse another database and another role."""
        asked, user = said.get("database") or said.get("user", ""), said.get("user", "")
        if (asked, user) != (self._database.name, self._database.user) or "replication" in said:
            raise _Refused(
                "28000", f"this socket leads to the {self._database} alone, and not to {asked!r} as {user!r}"
            )

    async def _connect(self, kept: dict[str, str]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the server and authenticate; what it says next is the job's to read.

        Raises:
            _Refused: it cannot be reached, or does not let the role in.
        """
        at = self._database
        try:
            if at.path is not None:
                reader, writer = await asyncio.open_unix_connection(str(at.path / f".s.PGSQL.{at.port}"))
            else:
                reader, writer = await asyncio.open_connection(at.host, at.port)
        except OSError as error:
            raise _Refused("08001", f"the {at} cannot be reached: {error.strerror or error}") from error
        try:
            words = {**kept, "user": at.user, "database": at.name, "options": "-c default_transaction_read_only=on"}
            pairs = b"".join(f"{key}\0{value}\0".encode() for key, value in words.items())
            start = struct.pack(">I", _VERSION) + pairs + b"\0"
            writer.write(struct.pack(">I", len(start) + 4) + start)
            await _authenticate(reader, writer, at)
        except BaseException:
            writer.close()
            raise
        return reader, writer


class _Refused(Exception):  # noqa: N818 - it is told to the job, as the server's own would be
    """A connection that may not begin.

    Args:
        code: SQLSTATE.
        what: why, in words.
        said: the server's own message, if it refused.
    """

    def __init__(self, code: str, what: str, said: bytes = b"") -> None:
        super().__init__(what)
        self._code, self._said = code, said

    def message(self) -> bytes:
        """Return it as the job's library reads it."""
        fields = {"S": "FATAL", "V": "FATAL", "C": self._code, "M": str(self)}
        told = b"".join(f"{key}{value}\0".encode() for key, value in fields.items()) + b"\0"
        return _message(b"E", self._said or told)


def _message(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack(">I", len(content) + 4) + content


async def _carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while chunk := await source.read(_CHUNK):
        sink.write(chunk)
        await sink.drain()


async def _greeting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> dict[str, str]:
    """Read what a job's library says first; encryption is declined on this machine's own socket."""
    while True:
        size, code = struct.unpack(">II", await reader.readexactly(8))
        if not 8 <= size <= _LONGEST:
            raise _Refused("08P01", "that is no greeting of PostgreSQL")
        rest = await reader.readexactly(size - 8)
        if code in (_TLS, _GSS):
            writer.write(b"N")
            continue
        if code != _VERSION:  # a request to cancel another query is one of them
            raise _Refused("08P01", "that is no greeting of PostgreSQL, version 3.0")
        words = rest.rstrip(b"\0").decode("utf-8", "replace").split("\0")
        return dict(zip(words[::2], words[1::2], strict=False))


async def _authenticate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, at: SiteDatabase) -> None:
    """Show the server that this is the role."""
    scram: _Scram | None = None
    while True:
        kind, size = struct.unpack(">cI", await reader.readexactly(5))
        if not 4 <= size <= _LONGEST:
            raise _Refused("08P01", f"the {at} does not speak PostgreSQL's protocol")
        content = await reader.readexactly(size - 4)
        if kind == b"E":
            raise _Refused("28000", "", content)
        if kind != b"R":
            continue
        (how,), more = struct.unpack(">I", content[:4]), content[4:]
        if how == 0:
            return
        if how == 12 and scram is not None:
            scram.require_server(more)
            continue
        if how == 10 and b"SCRAM-SHA-256" in more.split(b"\0"):
            scram = _Scram(_password(at))
        writer.write(_message(b"p", _answer(how, more, at, scram)))


def _answer(how: int, more: bytes, at: SiteDatabase, scram: _Scram | None) -> bytes:
    """Return the answer to one of the server's questions about the role."""
    if how == 10 and scram is not None:
        return b"SCRAM-SHA-256\0" + struct.pack(">I", len(scram.first)) + scram.first
    if how == 11 and scram is not None:
        return scram.proof(more)
    if how == 3:
        return _password(at).encode() + b"\0"
    if how == 5:
        inner = hashlib.md5(_password(at).encode() + at.user.encode()).hexdigest()  # noqa: S324 - as the server wants it
        return b"md5" + hashlib.md5(inner.encode() + more[:4]).hexdigest().encode() + b"\0"  # noqa: S324
    raise _Refused("28000", f"the {at} asks for a way to authenticate that a site's daemon does not know ({how})")


class _Scram:
    """The client's half of SCRAM-SHA-256."""

    def __init__(self, password: str) -> None:
        self._password = password
        self._bare = f"n=,r={base64.b64encode(secrets.token_bytes(18)).decode()}"
        self._signature = b""
        self.first = f"n,,{self._bare}".encode()

    def proof(self, said: bytes) -> bytes:
        """Return the answer to the server's first message."""
        words = dict(word.split("=", 1) for word in said.decode().split(","))
        salt, rounds = base64.b64decode(words["s"]), int(words["i"])
        salted = hashlib.pbkdf2_hmac("sha256", self._password.encode(), salt, rounds)
        key = hmac.digest(salted, b"Client Key", "sha256")
        if not words["r"].startswith(self._bare.partition("r=")[2]):
            raise _Refused("28000", "the server's answer is to another question")
        last = f"c=biws,r={words['r']}"
        whole = f"{self._bare},{said.decode()},{last}".encode()
        mine = hmac.digest(hashlib.sha256(key).digest(), whole, "sha256")
        self._signature = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), whole, "sha256")
        proof = bytes(a ^ b for a, b in zip(key, mine, strict=True))
        return f"{last},p={base64.b64encode(proof).decode()}".encode()

    def require_server(self, said: bytes) -> None:
        """Refuse a server that does not know the password."""
        if not hmac.compare_digest(said, b"v=" + base64.b64encode(self._signature)):
            raise _Refused("28000", "the server does not know the role's password")


def _password(at: SiteDatabase) -> str:
    """Return the role's password: of PGPASSWORD, or of the password file (libpq documentation, section 34.16).

    Raises:
        _Refused: there is none.
    """
    if os.environ.get("PGPASSWORD"):
        return os.environ["PGPASSWORD"]
    file = Path(os.environ.get("PGPASSFILE") or Path.home() / ".pgpass")
    hosts = (at.host,) if at.path is None else ("localhost", str(at.path))
    with contextlib.suppress(OSError):
        closed = not file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        for line in file.read_text(encoding="utf-8").splitlines() if closed else ():
            words = [
                word.replace("\1", ":").replace("\2", "\\")
                for word in line.replace("\\\\", "\2").replace("\\:", "\1").split(":", 4)
            ]
            wanted = ((*hosts,), (str(at.port),), (at.name,), (at.user,))
            if len(words) == 5 and all(word in ("*", *these) for word, these in zip(words, wanted, strict=False)):
                return words[4]
    raise _Refused(
        "28P01",
        f"the {at} wants a password: put it into {file}, which only its owner may read (chmod 600), or into PGPASSWORD of `atoll site`",
    )


@contextlib.contextmanager
def relaying(database: SiteDatabase) -> Iterator[str]:
    """Lead to a database while this context is entered, from a thread of its own; yields the folder of the socket, or nothing for a file."""
    if database.engine != "PostgreSQL":
        yield ""
        return
    relay, loop = DatabaseRelay(database), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="atoll-database", daemon=True)
    thread.start()
    try:
        yield str(asyncio.run_coroutine_threadsafe(relay.start(), loop).result().folder)
    finally:
        asyncio.run_coroutine_threadsafe(relay.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class LogHolder:
    """Keeps an SQLite database with a write-ahead log open, for as long as a job reads it.

    Whoever opens such a file first makes the log's two files beside it, which nobody can do in a sandbox.

    Args:
        database: the database.
    """

    def __init__(self, database: SiteDatabase) -> None:
        self._kept = open_database(database)

    async def close(self) -> None:
        """Let go of it."""
        self._kept.close()


async def open_way(data: Mapping[str, Any], kit: Kit) -> DatabaseRelay | LogHolder | None:
    """Return what a job needs to reach the database that a site's settings name, until it is closed; None if it needs nothing. A relay has not started yet.

    Raises:
        DataError: the settings are wrong, or the file cannot be opened.
    """
    settings = await asyncio.to_thread(settings_of, data, kit.name, bool(kit.plays)) if data else {}
    words = settings.get("database")
    database = None if not words else await asyncio.to_thread(database_of, str(words))
    if database is not None and database.logs:
        return LogHolder(database)
    return None if database is None or database.engine != "PostgreSQL" else DatabaseRelay(database)


def look_at_settings(data: Mapping[str, Any], name: str, helper: bool = False) -> str:
    """Look at the database that a site's settings name, as `look_at_database` does; nothing if they name none.

    Raises:
        DataError: the settings are wrong, or the database cannot be opened.
        PolicyError: the role of PostgreSQL may write, or see another database.
    """
    words = settings_of(data, name, helper).get("database") if data else None
    return look_at_database(database_of(str(words))) if words else ""


def look_at_database(database: SiteDatabase) -> str:
    """Connect as a job would, and look; return in words what a job finds.

    Raises:
        DataError: it cannot be opened.
        PolicyError: the role of PostgreSQL may write, or see another database.
    """
    with relaying(database) as folder:
        opened = open_database(database, folder)
        try:
            if database.engine == "SQLite":
                (count,) = opened.execute(
                    "select count(*) from sqlite_master where type in ('table', 'view')"
                ).fetchone()
                part = "its folder, which holds its write-ahead log" if database.logs else "the file"
                return f"{database}: {_tables(count)}; a job in a sandbox sees {part} and cannot write it"
            if database.engine == "DuckDB":
                (count,) = opened.execute("select count(*) from duckdb_tables() where not internal").fetchone()
                return f"{database}: {_tables(count)}; a job in a sandbox sees the file and cannot write it"
            found = {what: [str(row[0]) for row in opened.execute(ask).fetchall()] for what, ask, _ in _QUESTIONS}
            (count,) = opened.execute(_READABLE).fetchone()
        finally:
            opened.close()
    for what, _, remedy in _QUESTIONS:
        if found[what]:
            named = ", ".join(found[what][:5]) + (f" and {len(found[what]) - 5} more" if len(found[what]) > 5 else "")
            values = {"user": _quote_name(database.user), "name": _quote_name(database.name), "first": found[what][0]}
            raise PolicyError(
                f"the role {database.user!r} {what}: {named}",
                where=str(database),
                remedy="let a role read that can do nothing else: " + remedy.format(**values),
            )
    return f"{database}: {_tables(count)} that the role may read, and nothing that it may write"


def _tables(count: int) -> str:
    return f"{count} table{'' if count == 1 else 's'}"


def _quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


_READABLE = """
    select count(*) from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where c.relkind in ('r', 'p', 'v', 'm', 'f') and n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
    and has_schema_privilege(n.oid, 'USAGE') and has_any_column_privilege(c.oid, 'SELECT')
"""
# What the role may not have, how it is found, and what takes it away. Privileges of the groups that it is in count: it can SET ROLE.
_QUESTIONS = (
    (
        "is a superuser, or may make roles or databases, replicate or bypass row security, or is in a role that may",
        """select rolname from pg_roles where pg_has_role(current_user, oid, 'MEMBER')
        and (rolsuper or rolcreaterole or rolcreatedb or rolreplication or rolbypassrls)
        order by rolname <> current_user, rolname""",
        "CREATE ROLE another LOGIN, GRANT SELECT on the tables to it, and name it",
    ),
    (
        "is in a role that reaches all data, or files and programs of the server",
        """select rolname from pg_roles where pg_has_role(current_user, oid, 'MEMBER') and rolname in ('pg_read_all_data', 'pg_write_all_data',
        'pg_read_server_files', 'pg_write_server_files', 'pg_execute_server_program', 'pg_signal_backend', 'pg_checkpoint', 'pg_maintain',
        'pg_create_subscription') order by 1""",
        "REVOKE {first} FROM {user}",
    ),
    (
        "may write",
        """select distinct n.nspname || '.' || c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
        join pg_roles r on pg_has_role(current_user, r.oid, 'MEMBER')
        where c.relkind in ('r', 'p', 'v', 'm', 'f', 'S') and n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
        and case when c.relkind = 'S' then has_sequence_privilege(r.oid, c.oid, 'USAGE, UPDATE')
        else has_table_privilege(r.oid, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE') or has_any_column_privilege(r.oid, c.oid, 'INSERT, UPDATE') end
        order by 1""",
        "REVOKE INSERT, UPDATE, DELETE, TRUNCATE ON {first} FROM {user}, and let another role own it",
    ),
    (
        "may make things in",
        """select 'schema ' || n.nspname from pg_namespace n join pg_roles r on pg_has_role(current_user, r.oid, 'MEMBER')
        where n.nspname !~ '^pg_(toast|temp)' and has_schema_privilege(r.oid, n.oid, 'CREATE')
        union select 'database ' || d.datname from pg_database d join pg_roles r on pg_has_role(current_user, r.oid, 'MEMBER')
        where has_database_privilege(r.oid, d.oid, 'CREATE') order by 1""",
        "REVOKE CREATE ON {first} FROM PUBLIC, {user}",
    ),
    (
        "may make large objects, by",
        """select distinct p.oid::regprocedure::text from pg_proc p join pg_roles r on pg_has_role(current_user, r.oid, 'MEMBER')
        where p.proname in ('lo_creat', 'lo_create', 'lo_from_bytea', 'lo_import') and has_function_privilege(r.oid, p.oid, 'EXECUTE')
        order by 1""",
        "REVOKE EXECUTE ON FUNCTION lo_creat(integer), lo_create(oid), lo_from_bytea(oid, bytea) FROM PUBLIC (as a superuser, in {name})",
    ),
    (
        "may connect to other databases",
        """select distinct d.datname from pg_database d join pg_roles r on pg_has_role(current_user, r.oid, 'MEMBER')
        where d.datallowconn and d.datname <> current_database() and has_database_privilege(r.oid, d.oid, 'CONNECT') order by 1""",
        "REVOKE CONNECT ON DATABASE {first} FROM PUBLIC, {user}",
    ),
)
