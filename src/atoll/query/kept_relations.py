"""``CREATE TEMP TABLE stays AS SELECT …``: relations that stay shared between the statements of one connection, and the statements that read them, written out.

An analyst's connection remembers what each relation is. A statement that reads ``stays`` becomes ``WITH stays AS MATERIALIZED (SELECT …) SELECT …``, which is what is signed and checked, beside the id under which the parties keep
their shares (`atoll.query.strategies.kept_shares`). A relation may read relations that were made before.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atoll.core.errors import ConfigError, nearest
from atoll.core.extras import need

from .databases.silo import quote
from .statement import BEGIN, Catalog, parse_statement, set_params, without_explain

__all__ = ["KeptRelation", "KeptRelations", "read_command"]

_CREATE = re.compile(r'(explain(?:\s+analyze)?\s+)?create\s+(or\s+replace\s+)?(temp(?:orary)?\s+)?table\s+(if\s+not\s+exists\s+)?(?:"(\w+)"|(\w+))\s+as\s+(.*)', re.I | re.S)  # fmt: skip
_DROP = re.compile(r'drop\s+table\s+(if\s+exists\s+)?(?:"(\w+)"|(\w+))\s*;?\s*', re.I)
_SHOW = re.compile(r"show\s+tables\s*;?\s*", re.I)
_DESCRIBE = re.compile(r'(?:describe|desc)\s+(?:"(\w+)"|(\w+))\s*;?\s*', re.I)
_WITH = re.compile(r"with\s+", re.I)

Ask = Callable[..., Any]
"""Answers a statement: its text, its parameters, and settings of the job."""


@dataclass(frozen=True)
class KeptRelation:
    """A relation that the parties keep.

    Attributes:
        name: its name, in lower case.
        number: its id.
        parts: the WITH that says what it is: each name and its text, after those that it reads, itself last.
        columns: column -> DuckDB's type.
        rows: how many rows it has at most.
    """

    name: str
    number: str
    parts: tuple[tuple[str, str], ...]
    columns: Mapping[str, str] = field(default_factory=dict)
    rows: int = 0


def read_command(text: str) -> tuple[str, re.Match[str]] | None:
    """What a statement does with relations: ``"create"``, ``"drop"``, ``"show"`` or ``"describe"``; ``None`` for another statement.

    Raises:
        ConfigError: a table is to be made for good.
    """
    body = text[BEGIN.match(text).end() :]  # type: ignore[union-attr]  # it matches nothing at least
    for name, pattern in (("create", _CREATE), ("drop", _DROP), ("show", _SHOW), ("describe", _DESCRIBE)):
        found = pattern.fullmatch(body)
        if found is None:
            continue
        if name == "create" and not found[3]:
            raise ConfigError("CREATE is not allowed: silos are only read", where="sql", remedy="write CREATE TEMP TABLE … AS SELECT …, which the parties keep under shares until the connection ends")  # fmt: skip
        return name, found
    return None


class KeptRelations:
    """The relations of one connection."""

    def __init__(self) -> None:
        self._known: dict[str, KeptRelation] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, name: object) -> bool:
        return name in self._known

    @property
    def ids(self) -> dict[str, str]:
        """The id of each relation."""
        return {name: one.number for name, one in self._known.items()}

    def forget(self) -> None:
        """Forget all relations, without a word to anybody."""
        self._known.clear()

    # ------------------------------------------------------------------ statements

    def answer(self, text: str, params: Sequence[Any] | Mapping[str, Any], ask: Ask) -> Any:
        """Answer a statement of any kind.

        Args:
            text: the statement.
            params: its parameters.
            ask: answers one SELECT, or EXPLAIN of one.

        Raises:
            ConfigError: it makes a relation that is there already, or drops one that is not.
        """
        command = read_command(text)
        if command is None:
            written, reads = self.write_out(text)
            return ask(written, params, **({"kept": {name: self._known[name].number for name in reads}} if reads else {}))  # fmt: skip
        kind, found = command
        if kind == "create":
            return self._create(found, params, ask)
        if kind == "drop":
            return self._drop(found, ask)
        name = (found[1] or found[2]).lower() if kind == "describe" else ""
        if kind == "describe" and name not in self._known:
            return ask(text, params)
        result = ask("SHOW TABLES", ())
        if kind == "show":
            least = result.rows[0][4] if result.rows else None
            return result.with_rows([*result.rows, *((one.name, len(one.columns), "kept", "", least) for one in self._known.values())])  # fmt: skip
        rows = [(column, kind, "kept", None, None) for column, kind in self._known[name].columns.items()]
        return result.with_rows(rows, ("column", "type", "level", "release", "join"), ("VARCHAR",) * 5)

    def _create(self, found: re.Match[str], params: Sequence[Any] | Mapping[str, Any], ask: Ask) -> Any:
        name, explain = (found[5] or found[6]).lower(), found[1] or ""
        there = name in self._known and explain.strip().lower() != "explain"
        if there and found[4]:
            return ask("SHOW TABLES", ()).with_rows([], ("relation",), ("VARCHAR",))
        if there and not found[2]:
            raise ConfigError(f"{name} is kept already", where="sql", remedy=f"write DROP TABLE {name} first, or CREATE OR REPLACE, or choose another name")  # fmt: skip
        reads, parts = self._read_query(name, found[7], params)
        if there:
            self._forget(name, ask)
        number = secrets.token_hex(16)
        text = f"{explain}{_written(parts)} SELECT * FROM {quote(name)}"
        kept = {one: self._known[one].number for one in reads}
        result = ask(text, (), kept={**kept, name: number}, creates=name)
        about = result.facts().get("kept")
        if about:  # EXPLAIN alone makes none
            columns = dict(zip(result.columns, result.types, strict=True))
            self._known[name] = KeptRelation(name, number, tuple(parts.items()), columns, int(about["rows"]))
        return result

    def _drop(self, found: re.Match[str], ask: Ask) -> Any:
        name = (found[2] or found[3]).lower()
        if name not in self._known and found[1]:
            return ask("SHOW TABLES", ()).with_rows([], ("dropped",), ("VARCHAR",))
        if name not in self._known:
            raise ConfigError(f"no relation {name} is kept.{nearest(name, self._known)}", where="sql", remedy=f"use {', '.join(self._known)}" if self._known else "write CREATE TEMP TABLE … AS SELECT … first")  # fmt: skip
        return self._forget(name, ask)

    def _forget(self, name: str, ask: Ask) -> Any:
        """Have all parties forget a relation; one that was made of it stays, since its rows are kept by themselves."""
        result = ask(f"SELECT 1 -- DROP TABLE {name}", (), kept={name: self._known[name].number}, drops=True)
        del self._known[name]
        return result

    def drop_all(self, ask: Ask) -> None:
        """Have all parties forget the relations of this connection."""
        if self._known:
            ask("SELECT 1 -- DROP TABLE", (), kept=self.ids, drops=True)
            self._known.clear()

    # ------------------------------------------------------------------ texts

    def _read_query(self, name: str, text: str, params: Sequence[Any] | Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:  # fmt: skip
        """The relations that a new one reads, and the WITH that says what it is: what its own WITH names stands before it.

        Raises:
            ConfigError: two of these have one name.
        """
        sqlglot = need("sqlglot", "sql", "SQL over silos")
        body = text.strip().removesuffix(";").rstrip()
        reads, tree = self.find_reads(body), _parsed(sqlglot, body)
        if tree is None:
            parse_statement(body, Catalog({}))  # says where
            raise ConfigError(f"{name} is to be made of something else than one SELECT", where="sql", remedy="write CREATE TEMP TABLE … AS SELECT …")  # fmt: skip
        parts = self._parts_of(reads)
        if params:
            set_params(sqlglot, tree, tuple(params.items()) if isinstance(params, Mapping) else tuple(params), isinstance(params, Mapping))  # fmt: skip
        common = tree.args.get("with_")
        own = {one.alias.lower(): f"{quote(one.alias.lower())} AS ({one.this.sql('duckdb')})" for one in common.expressions} if common else {}  # fmt: skip
        odd = next((one for one in own if one == name or one in self._known or parts.get(one, own[one]) != own[one]), None)  # fmt: skip
        if odd is not None:
            raise ConfigError(f"WITH {odd} has the name of another relation, or of what another WITH names", where="sql", remedy="give it another name")  # fmt: skip
        parts |= own
        tree.set("with_", None)
        if params or own or "--" in body or "/*" in body:
            body = tree.sql("duckdb")
        if name in parts:
            raise ConfigError(f"{name} is a part of what it is made of", where="sql", remedy="give it another name")  # fmt: skip
        return reads, {**parts, name: f"{quote(name)} AS MATERIALIZED ({body})"}

    def find_reads(self, text: str) -> list[str]:
        """The relations that a query reads, in the order in which they were made.

        Raises:
            ConfigError: it names what is written out beside one of them, and is no relation of its own.
        """
        if not self._known:
            return []
        sqlglot = need("sqlglot", "sql", "SQL over silos")
        tree = _parsed(sqlglot, text)
        if tree is None:
            return []
        hidden = {one.alias.lower() for one in tree.find_all(sqlglot.exp.CTE)}
        named = {name for table in tree.find_all(sqlglot.exp.Table) if not table.db for name in _names_in(sqlglot.exp, table)} - hidden  # fmt: skip
        reads = [name for name in self._known if name in named]
        odd = next((alias for alias in self._parts_of(reads) if alias in named and alias not in self._known), None)
        if odd is not None:
            raise ConfigError(f"no relation {odd} is kept", where="sql", remedy=f"use {', '.join(self._known)}, or create it anew under another name")  # fmt: skip
        return reads

    def _parts_of(self, reads: Sequence[str]) -> dict[str, str]:
        """The WITH of several relations.

        Raises:
            ConfigError: they read two that had one name.
        """
        parts: dict[str, str] = {}
        for name in reads:
            for alias, text in self._known[name].parts:
                if parts.setdefault(alias, text) != text:
                    raise ConfigError(f"{alias} was dropped and made anew since another relation was made of it", where="sql", remedy=f"drop {name}, and create it anew")  # fmt: skip
        return parts

    def write_out(self, text: str) -> tuple[str, list[str]]:
        """A statement with the relations that it reads written out, and which these are."""
        body, _ = without_explain(text)
        reads = self.find_reads(body)
        if not reads:
            return text, []
        own = _WITH.match(body)
        return (
            f"{text.removesuffix(body)}{_written(self._parts_of(reads))}{', ' + body[own.end() :] if own else ' ' + body}",
            reads,
        )


def _names_in(exp: Any, table: Any) -> list[str]:
    """The tables that a part of FROM names: itself, or the arguments of a rule, ``Skyline(stays, cost)``."""
    if not isinstance(table.this, exp.Anonymous):
        return [table.name.lower()]
    given = [one.this if isinstance(one, exp.Alias) else one for one in table.this.expressions]
    return [one.name.lower() for one in given if isinstance(one, exp.Column) and not one.table]


def _written(parts: Mapping[str, str]) -> str:
    return f"WITH {', '.join(parts.values())}"


def _parsed(sqlglot: Any, body: str) -> Any:
    """The tree of a query; ``None`` if it cannot be read: then the sites' parser says where."""
    try:
        trees = [tree for tree in sqlglot.parse(body, dialect="duckdb") if tree is not None]
    except sqlglot.errors.SqlglotError:
        return None
    queries = sqlglot.exp.Query  # SELECT and what joins several, not the job of that name
    return trees[0] if len(trees) == 1 and isinstance(trees[0], queries) else None
