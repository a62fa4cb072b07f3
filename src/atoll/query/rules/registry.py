"""The contract of a rule: a table function in FROM that the coordinator writes out as SQL before anybody plans.

``FROM Skyline(hotels, price, -stars)`` names a rule and its arguments. The rule says what stands in its place: tables, joins and a condition. So a plan is one of existing operators, every strategy sees plain
SQL with its levels, and what leaves, what it costs and who learns what follow as for SQL that a person has written. ``EXPLAIN`` shows what the call stands for.

A rule is a function with `rule` above it. Those of Atoll lie in this package; a module of your own adds others as soon as it is imported::

    @rule("Cheap(table, value, most)")
    def write_cheap(call: RuleCall) -> Rewriting:
        one = call.source(0)
        return Rewriting(one.text, f"{call.expression(1, one)} < {call.whole(2, 0, 1000)}")

Beside the functions of SQL a rule may use the spatial ones (`atoll.query.spatial`), and ``Matched(weight)`` in ON (`atoll.query.rules.matching`).
"""

from __future__ import annotations

import importlib
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from atoll.core.errors import ConfigError, nearest

from ..databases.silo import quote

if TYPE_CHECKING:
    from ..policy import PointPolicy

__all__ = [
    "QueryRule",
    "Rewriting",
    "RuleCall",
    "RuleSource",
    "count_rules",
    "expand_rules",
    "is_rule",
    "known_rules",
    "rule",
]

_MOST_CALLS = 100
"""Most calls in one statement, those that rules write included: a rule may write another rule's call, and none may write its own for ever."""
Tables = Mapping[str, Mapping[str, str]]
Points = Mapping[str, "Mapping[str, PointPolicy]"]
MORE = "…"
"""Stands behind the last argument of a signature that may be repeated."""
_SIGNATURE = re.compile(r"\s*(\w+)\((\w+(?:,\s*\w+)*)(,\s*…)?\)\s*")


@dataclass(frozen=True)
class Rewriting:
    """What stands in the place of a call.

    Attributes:
        source: SQL of what FROM reads: a table, a subquery with its name, or a join.
        condition: SQL of a condition that is added to WHERE by AND.
    """

    source: str
    condition: str = ""


@dataclass(frozen=True)
class RuleSource:
    """A table or subquery among the arguments of a call.

    Attributes:
        text: SQL of it with its name, as FROM takes it.
        alias: its name in the statement.
        inner: SQL of it without a name, to read it once more.
        columns: its columns, in lower case.
        types: the types of those that are columns of a table, or casts.
        points: the points of its tables whose columns it has.
    """

    text: str
    alias: str
    inner: str
    columns: tuple[str, ...]
    types: Mapping[str, str] = field(default_factory=dict)
    points: Mapping[str, PointPolicy] = field(default_factory=dict)

    def named(self, alias: str) -> RuleSource:
        """The same rows under another name, to read them once more or as the statement calls them."""
        return replace(self, text=f"{self.inner} AS {quote(alias)}", alias=alias)


class RuleCall:
    """A call, as its rule sees it.

    Args:
        known: the rule.
        node: sqlglot's node of the call.
        tables: the tables of the catalog: table -> column -> type.
        at: the line of a node, and a caret below it, for errors.
        points: table -> point -> its columns.

    Attributes:
        alias: the name that the statement gives the call; empty without one.
        arguments: sqlglot's nodes of the arguments.
    """

    def __init__(self, known: QueryRule, node: Any, tables: Tables, at: Callable[[Any], str], points: Points) -> None:
        self.rule, self.node, self.tables, self._at, self._points = known, node, tables, at, points
        self.alias: str = node.alias
        self.arguments: list[Any] = list(node.this.expressions)

    @property
    def text(self) -> str:
        """The call as SQL."""
        return f"{self.rule.name}({', '.join(one.sql('duckdb') for one in self.arguments)})"

    def asks(self, name: str) -> bool:
        """Whether the statement may read a column of this name: it has the word, or a star.

        A rule leaves out what nobody asks for, so that no strategy has to compute it.
        """
        from sqlglot import exp

        root = self.node.root()
        if any(not isinstance(star.parent, exp.Count) for star in root.find_all(exp.Star)):
            return True
        return any(one.name.lower() == name.lower() for one in root.find_all(exp.Identifier))

    def refuse(self, what: str, remedy: str, place: int | None = None) -> ConfigError:
        """An error that shows the call, or one of its arguments.

        Args:
            what: what is wrong.
            remedy: what to write.
            place: the argument.
        """
        at = self._at(self.node if place is None else self.arguments[place]) or self._at(self.node)
        return ConfigError(f"{self.rule.name}: {what}{at}", where="sql", remedy=remedy)

    def source(self, place: int, alias: str = "") -> RuleSource:
        """A table of the catalog, one that WITH names, or a subquery, among the arguments: ``hotels``, ``hotels AS h``, ``(SELECT …) AS h``.

        Args:
            place: the argument.
            alias: its name if the argument gives none; by default the name of the table.

        Raises:
            ConfigError: it is neither.
        """
        from sqlglot import exp

        given = self.arguments[place]
        node, name = (given.this, given.alias) if isinstance(given, exp.Alias) else (given, "")
        if isinstance(node, exp.Subquery):
            name = name or node.alias or alias
            if not name:
                raise self.refuse("a subquery without a name", f"write (SELECT …) AS {self.rule.arguments[place]}", place)  # fmt: skip
            inner = f"({node.this.sql('duckdb')})"
            return RuleSource(f"{inner} AS {quote(name)}", name, inner, *self._read_query(node.this))
        table = node.name.lower() if isinstance(node, exp.Column) and not node.table else ""
        named = self._named()
        if table not in named and table not in self.tables:
            known = [*self.tables, *named]
            near = nearest(table, known).replace("'", "")
            raise self.refuse(f"{node.sql('duckdb')} is no table.{near}", f"use {', '.join(known)}, or a subquery in parentheses", place)  # fmt: skip
        name = name or alias or table
        if table in named:  # what WITH names, and so a relation that is kept
            return RuleSource(f"{quote(table)} AS {quote(name)}", name, quote(table), *self._read_query(named[table]))
        columns = tuple(one.lower() for one in self.tables[table])
        types = {one.lower(): kind for one, kind in self.tables[table].items()}
        return RuleSource(f"{quote(table)} AS {quote(name)}", name, quote(table), columns, types, self._points.get(table, {}))  # fmt: skip

    def _named(self, before: Any = None) -> dict[str, Any]:
        """The queries that the statement's WITH names, up to one of them."""
        common = self.node.root().args.get("with_")
        parts = [(one.alias.lower(), one.this) for one in common.expressions] if common else []
        return dict(itertools.takewhile(lambda one: one[1] is not before, parts))

    def _read_query(self, query: Any) -> tuple[tuple[str, ...], dict[str, str], dict[str, PointPolicy]]:
        """Columns of a query, their types, and the points of its tables whose columns it has."""
        from sqlglot import exp

        columns, read, named = self._names_of(query), set[str](), self._named(query)
        for table in query.find_all(exp.Table):
            inner = named.get(table.name.lower())
            read |= {table.name.lower()} if inner is None else {one.name.lower() for one in inner.find_all(exp.Table)}
        points = {point: policy for one in sorted(read) for point, policy in self._points.get(one, {}).items() if {*policy.columns} <= {*columns}}  # fmt: skip
        return columns, self._types_of(query), points

    def _types_of(self, query: Any) -> dict[str, str]:
        """The types of the columns of a subquery that are columns of its tables by their own name, or casts."""
        from sqlglot import exp

        known: dict[str, set[str]] = {}
        for table in query.find_all(exp.Table):
            inner = self._named(query).get(table.name.lower())
            for name, kind in (self.tables.get(table.name.lower(), {}) if inner is None else self._types_of(inner)).items():  # fmt: skip
                known.setdefault(name.lower(), set()).add(kind)
        found = {name: next(iter(kinds)) for name, kinds in known.items() if len(kinds) == 1}
        for one in query.selects:
            name, value = one.alias_or_name.lower(), one.unalias()
            if isinstance(value, exp.Cast | exp.TryCast):
                found[name] = value.to.sql("duckdb")
            elif not (isinstance(value, exp.Column | exp.Star) and value.name.lower() in (name, "*")):
                found.pop(name, None)
        return found

    def _names_of(self, query: Any) -> tuple[str, ...]:
        """The columns of a subquery; ``*`` stands for those of all tables that it reads."""
        from sqlglot import exp

        found: list[str] = []
        for one in query.selects:
            if one.is_star:
                for table in query.find_all(exp.Table):
                    inner = self._named(query).get(table.name.lower())
                    own = self.tables.get(table.name.lower(), ()) if inner is None else self._names_of(inner)
                    found += [name.lower() for name in own]
            else:
                found.append(one.alias_or_name.lower())
        return tuple(dict.fromkeys(found))

    def expression(self, place: int, *sources: RuleSource, of: Sequence[RuleSource] = ()) -> str:
        """SQL of an argument, every column with its table.

        Args:
            place: the argument.
            sources: the tables that it may read.
            of: the names under which it reads them; by default their own.

        Raises:
            ConfigError: a column is in none of the tables, or in two.
        """
        from sqlglot import exp

        made = self.arguments[place].copy()
        called = [one.alias for one in of or sources]
        for column in list(made.find_all(exp.Column)):
            own, name = column.table.lower(), column.name.lower()
            fits = [k for k, one in enumerate(sources) if own in ("", one.alias.lower()) and name in one.columns]
            if len(fits) != 1:
                known = [name for one in sources for name in one.columns]
                what = f"{column.sql('duckdb')} is a column of {' and of '.join(sources[k].alias for k in fits)}" if fits else f"no column {column.sql('duckdb')} in {' and '.join(one.alias for one in sources)}.{nearest(name, known)}".replace("'", "")  # fmt: skip
                raise self.refuse(what, f"name its table: {sources[0].alias}.{name}" if fits else f"use {', '.join(dict.fromkeys(known))}", place)  # fmt: skip
            made_column = exp.column(exp.to_identifier(name, quoted=True), table=exp.to_identifier(called[fits[0]], quoted=True))  # fmt: skip
            if column is made:
                made = made_column
            else:
                column.replace(made_column)
        return str(made.sql("duckdb"))

    def column(self, place: int, source: RuleSource) -> str:
        """The name of a column of a table, quoted.

        Raises:
            ConfigError: the argument is no column of it.
        """
        from sqlglot import exp

        node = self.arguments[place]
        if not isinstance(node, exp.Column) or node.table.lower() not in ("", source.alias.lower()) or node.name.lower() not in source.columns:  # fmt: skip
            near = nearest(node.name.lower(), source.columns).replace("'", "") if isinstance(node, exp.Column) else ""
            raise self.refuse(f"{node.sql('duckdb')} is no column of {source.alias}.{near}", f"use {', '.join(source.columns)}", place)  # fmt: skip
        return quote(node.name.lower())

    def word(self, place: int) -> str:
        """A text.

        Raises:
            ConfigError: the argument is none.
        """
        node = self.arguments[place]
        if not getattr(node, "is_string", False):
            raise self.refuse(f"{node.sql('duckdb')} is no text", "write it in quotes", place)
        return str(node.name)

    def number(self, place: int, least: float, example: str) -> float:
        """A number of at least so much.

        Raises:
            ConfigError: the argument is none, or is less.
        """
        from sqlglot import exp

        node = self.arguments[place]
        value = float(node.name) if isinstance(node, exp.Literal) and not node.is_string else -1.0
        if not (math.isfinite(value) and value >= least):
            raise self.refuse(f"{self.rule.arguments[place]} is {node.sql('duckdb')}", f"use a number of at least {least:g}, such as {example}", place)  # fmt: skip
        return value

    def whole(self, place: int, low: int, high: int) -> int:
        """A whole number.

        Raises:
            ConfigError: the argument is none, or is outside of the range.
        """
        node = self.arguments[place]
        if not (getattr(node, "is_int", False) and low <= int(node.name) <= high):
            raise self.refuse(f"{self.rule.arguments[place]} is {node.sql('duckdb')}", f"use a whole number from {low:,} to {high:,}", place)  # fmt: skip
        return int(node.name)


@dataclass(frozen=True)
class QueryRule:
    """A rule.

    Attributes:
        name: as SQL has it; case does not matter.
        arguments: their names.
        repeated: whether the last argument may be repeated.
        rewrite: what it makes of a call.
    """

    name: str
    arguments: tuple[str, ...]
    repeated: bool
    rewrite: Callable[[RuleCall], Rewriting]

    @property
    def signature(self) -> str:
        """How it is called."""
        return f"{self.name}({', '.join(self.arguments)}{f', {MORE}' if self.repeated else ''})"

    def accepts(self, count: int) -> bool:
        """Whether it takes so many arguments."""
        return count == len(self.arguments) or (self.repeated and count > len(self.arguments))


_RULES: dict[str, QueryRule] = {}


def rule(signature: str) -> Callable[[Callable[[RuleCall], Rewriting]], Callable[[RuleCall], Rewriting]]:
    """Make a function a rule, by a decorator above it.

    Args:
        signature: ``"Skyline(table, value, …)"``: the name, and what its arguments are called; three dots if the last may be repeated.

    Raises:
        ConfigError: the signature cannot be read, or another rule has the name.
    """
    found = _SIGNATURE.fullmatch(signature.replace("...", MORE))
    if found is None:
        raise ConfigError(f"a rule {signature!r}", where="rule", remedy='write a name and arguments: "Skyline(table, value, …)"')  # fmt: skip
    name, arguments = found[1], tuple(part.strip() for part in found[2].split(","))

    def register(rewrite: Callable[[RuleCall], Rewriting]) -> Callable[[RuleCall], Rewriting]:
        known = _RULES.get(name.lower())
        if known is not None and (known.rewrite.__module__, known.rewrite.__qualname__) != (rewrite.__module__, rewrite.__qualname__):  # fmt: skip
            raise ConfigError(f"a second rule {name}: {known.rewrite.__module__} has one", where="rule", remedy="give it a name of its own")  # fmt: skip
        _RULES[name.lower()] = QueryRule(name, arguments, found[3] is not None, rewrite)
        return rewrite

    return register


def is_rule(found: Any) -> bool:
    """Whether a function is a rule."""
    return any(one.rewrite is found for one in _RULES.values())


def count_rules() -> int:
    """How many rules have been added so far."""
    return len(_RULES)


def known_rules() -> Mapping[str, QueryRule]:
    """Name in lower case -> rule: those of Atoll, and those of modules that are imported."""
    home = importlib.import_module("atoll.query.rules")
    for name in dir(home):
        getattr(home, name)  # loads the module, which registers
    return dict(sorted(_RULES.items()))


# ---------------------------------------------------------------- calls as SQL


def expand_rules(tree: Any, tables: Tables, at: Callable[[Any], str], points: Points) -> tuple[tuple[str, str], ...]:
    """Write the calls of rules in a statement out, in place, those inside others first.

    Args:
        tree: the statement, before names are resolved.
        tables: the tables of the catalog: table -> column -> type.
        at: the line of a node, and a caret below it, for errors.
        points: table -> point -> its columns.

    Returns:
        Each call, and what stands in its place.

    Raises:
        ConfigError: no rule has such a name, an argument does not fit, or the call stands where its condition would change what a join keeps.
    """
    from sqlglot import exp

    made: list[tuple[str, str]] = []
    while (node := next(_calls(exp, tree), None)) is not None:
        known = known_rules()
        name = node.this.name
        if name.lower() not in known:
            near = nearest(name, [one.name for one in known.values()]).replace("'", "")
            raise ConfigError(f"{name} is not allowed in FROM: no rule has this name.{near}{at(node.this)}", where="sql", remedy=f"use {', '.join(one.signature for one in known.values())}, or read a table")  # fmt: skip
        found = known[name.lower()]
        if len(made) == _MOST_CALLS:
            raise ConfigError(f"more than {_MOST_CALLS} calls of rules, the last of {found.name}", where="sql", remedy="correct the rule: it writes its own call again")  # fmt: skip
        call = RuleCall(found, node, tables, at, points)
        if not found.accepts(len(call.arguments)):
            raise call.refuse(f"{len(call.arguments)} arguments", f"write {found.signature}")
        text = call.text
        rewriting = found.rewrite(call)
        made.append((text, rewriting.source + (f" WHERE {rewriting.condition}" if rewriting.condition else "")))
        _replace(exp, call, rewriting)
    return tuple(made)


def _calls(exp: Any, tree: Any) -> Iterator[Any]:
    """Calls in FROM that have no other one among their arguments."""
    for table in tree.find_all(exp.Table):
        if isinstance(table.this, exp.Anonymous) and not any(isinstance(one.this, exp.Anonymous) for one in table.this.find_all(exp.Table)):  # fmt: skip
            yield table


def _replace(exp: Any, call: RuleCall, rewriting: Rewriting) -> None:
    import sqlglot

    node = call.node
    select = node.find_ancestor(exp.Select)
    joins = list(select.args.get("joins") or ())
    shown = f"SELECT 1 FROM {rewriting.source}" + (f" WHERE {rewriting.condition}" if rewriting.condition else "")
    written = sqlglot.parse_one(shown, dialect="duckdb")
    for one in written.walk():
        one.meta.clear()  # places in this text are none in the statement
    more = list(written.args.get("joins") or ())
    holder = node.parent
    if (more and not isinstance(holder, exp.From)) or (rewriting.condition and any(one.side or (one.kind or "").upper() in ("SEMI", "ANTI") for one in joins)):  # fmt: skip
        raise call.refuse("it stands in a join that keeps other rows than those that match", "write it first in FROM, and join others by inner joins; or in a subquery of its own")  # fmt: skip
    node.replace(written.args["from_"].this)
    select.set("joins", [*more, *joins])
    if written.args.get("where") is not None:
        select.where(written.args["where"].this, copy=False)
