"""A statement: the text of one SELECT, parsed, with every name resolved against the catalog.

The language is DuckDB's. A statement reads tables of the catalog and nothing else: what would change something, read a file, look at the database itself or call a
function that is not listed is refused before any site is asked. Errors show the line and point to the place.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atoll.core.errors import ConfigError, nearest
from atoll.core.extras import need

from .databases.silo import EMPTY, connect_duckdb, lock_connection, quote
from .policy import LEVELS, PointPolicy, QueryPolicy
from .rules.matching import expand_matched
from .rules.registry import count_rules, expand_rules
from .rules.trajectories import expand_runs
from .spatial import break_ties, expand_points

__all__ = [
    "BEGIN",
    "SOURCE",
    "Catalog",
    "SqlStatement",
    "describe_catalog",
    "parse_statement",
    "set_params",
    "shadow",
    "unite_schemas",
    "without_explain",
    "with_declared",
]

SOURCE = "@"
"""What stands before a table's name in local SQL, where it means the columns that the catalog has, with the catalog's types."""


@dataclass(frozen=True)
class Catalog:
    """The tables that all sites have.

    Attributes:
        tables: table -> column -> DuckDB's name of its type. Tables are in lower case; columns as they are written.
        points: table -> point -> its columns.
        partial: of each table that only some sites have its name, its columns, and the sites that lack it.
        vertical: table whose columns lie apart -> its key and its parts, which are tables.
    """

    tables: Mapping[str, Mapping[str, str]]
    points: Mapping[str, Mapping[str, PointPolicy]] = field(default_factory=dict)
    partial: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = ()
    vertical: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)

    def named_tables(self) -> dict[str, Mapping[str, str]]:
        """The tables that a statement may name: those whose columns lie apart too, with the key first."""
        apart = {part for _, parts in self.vertical.values() for part in parts}
        found = {table: columns for table, columns in self.tables.items() if table not in apart}
        for table, (key, parts) in self.vertical.items():
            columns = {name.lower(): kind for part in parts for name, kind in self.tables[part].items()}
            found[table] = {key: columns[key], **columns}
        return found

    def key(self) -> tuple[Any, ...]:
        """The catalog as a hashable value."""
        return tuple((table, *columns.items()) for table, columns in self.tables.items())


@dataclass(frozen=True)
class SqlStatement:
    """One SELECT.

    Attributes:
        text: as it was written.
        tree: sqlglot's tree, with names resolved.
        columns: names of the result's columns.
        types: DuckDB's types of the result's columns.
        sql: the SELECT with its parameters, as every site parses it again.
        pooled: the SELECT as DuckDB runs it over all rows in one place.
        explain: whether only the plan is asked for: ``""``, ``"explain"`` or ``"analyze"``.
        calls: each call of a rule, and what stands in its place.
        needs: what a strategy must offer beside SQL, in words: ``"matching"``, ``"stay"``.
    """

    text: str
    tree: Any = field(compare=False, repr=False)
    columns: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    explain: str = ""
    sql: str = ""
    pooled: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    needs: frozenset[str] = frozenset()


def with_declared(catalog: Catalog, policy: QueryPolicy) -> Catalog:
    """The catalog with the points that the policy declares, and the tables whose columns lie apart.

    Raises:
        ConfigError: two parts of a table have a column beside the key, or other keys.
    """
    points = {table: dict(policy.table(table).points) for table in catalog.tables}
    parts: dict[str, list[str]] = {}
    for name in sorted(catalog.tables):
        if policy.table(name).whole:
            parts.setdefault(policy.table(name).whole, []).append(name)
    vertical = {table: (_common_key(table, names, catalog, policy), tuple(names)) for table, names in parts.items()}
    return Catalog(catalog.tables, points, catalog.partial, vertical)


def _common_key(table: str, parts: Sequence[str], catalog: Catalog, policy: QueryPolicy) -> str:
    """The key of a table whose columns lie apart."""
    if table in catalog.tables or any(name == table for name, _, _ in catalog.partial):
        raise ConfigError(f"table {table} is of mode vertical at one site, and of another at another", where="policies of the sites", remedy="let all sites declare it alike")  # fmt: skip
    key = policy.table(parts[0]).key
    seen: dict[str, str] = {}
    kinds: dict[str, str] = {}
    for part in parts:
        if policy.table(part).key != key:
            raise ConfigError(f"the key of {table} is {key} in {parts[0]} and {policy.table(part).key} in {part}", where="policies of the sites", remedy="let all sites declare it alike, over a view that has the same name for it")  # fmt: skip
        columns = {name.lower(): kind for name, kind in catalog.tables[part].items()}
        for name in (one for one in columns if one != key):
            if name in seen:
                raise ConfigError(f"column {name} of {table} is in {seen[name]} and in {part}", where="tables of the sites", remedy=f"let a column beside {key} lie in one part alone: give one site a view without {name}, or the same columns as the other")  # fmt: skip
            seen[name] = part
        kinds[part] = columns[key]
    odd = next((part for part in parts if _family(kinds[part]) != _family(kinds[parts[0]])), None)
    if odd is not None:
        raise ConfigError(f"key {key} of {table} is {kinds[parts[0]]} in {parts[0]} and {kinds[odd]} in {odd}", where="tables of the sites", remedy="give it one type everywhere, such as by a view with CAST")  # fmt: skip
    return key


def unite_schemas(schemas: Mapping[str, Mapping[str, Mapping[str, str]]], parts: Collection[str] = ()) -> Catalog:
    """The tables that all sites have, with a type for each column that holds the values of all.

    Args:
        schemas: site -> table -> column -> type.
        parts: tables that need not be at all sites: where one is not, it has no rows.

    Raises:
        ConfigError: sites have types that do not fit together, or tables of other columns.
    """
    apart = {table: dict.fromkeys(columns, EMPTY) for one in schemas.values() for table, columns in one.items() if table in parts}  # fmt: skip
    schemas = {site: {**apart, **one} for site, one in schemas.items()}
    found: dict[str, dict[str, str]] = {}
    seen: dict[str, dict[str, str]] = {}
    first, *others = schemas
    for table, columns in schemas[first].items():
        if all(table.lower() in map(str.lower, schemas[site]) for site in others):
            found[table.lower()] = dict(columns)
            seen[table.lower()] = dict.fromkeys(columns, first)
    for site in others:
        for table, columns in schemas[site].items():
            if table.lower() in found:
                _unite(table.lower(), found[table.lower()], seen[table.lower()], columns, site)
    for columns in found.values():
        columns |= {name: "INTEGER" for name, kind in columns.items() if kind == EMPTY}
    here = {site: {table.lower(): tuple(columns) for table, columns in tables.items()} for site, tables in schemas.items()}  # fmt: skip
    rest = {table: columns for tables in here.values() for table, columns in tables.items() if table not in found}
    return Catalog(found, partial=tuple((table, columns, tuple(site for site in here if table not in here[site])) for table, columns in rest.items()))  # fmt: skip


def _refuse_table(shown: str, table: str, catalog: Catalog, known: Iterable[str], at: str = "") -> ConfigError:
    """An error for a table that not all sites have: what is divided among some sites only has rows at these, and none at the others."""
    columns, lacking = next(((columns, lacking) for name, columns, lacking in catalog.partial if name == table), ((), ()))  # fmt: skip
    if lacking:
        header = ",".join(columns)
        return ConfigError(f"table {table} is not at {' and '.join(lacking)}{at}", where="sql", remedy=f"give {' and '.join(lacking)} a table {table} without rows, such as a file {table}.csv with the line {header} alone, or an empty CREATE TABLE, and a policy for it")  # fmt: skip
    return ConfigError(f"no table {shown} is at all sites.{_near(table, known)}{at}", where="sql", remedy=f"use {', '.join(catalog.tables) or 'tables that all sites have'}")  # fmt: skip


def _unite(table: str, known: dict[str, str], seen: dict[str, str], columns: Mapping[str, str], site: str) -> None:  # fmt: skip
    """Widen the types of a table's columns by those of another site."""
    here = {name.lower(): kind for name, kind in columns.items()}
    odd = {name.lower() for name in known} ^ set(here)
    if odd:
        raise ConfigError(f"column {sorted(odd)[0]} of {table} is not at every site", where=site, remedy="give all sites the same columns, or a view that has them")  # fmt: skip
    for name, kind in known.items():
        other = here[name.lower()]
        if other in (kind, EMPTY):
            continue
        if kind == EMPTY:
            known[name], seen[name] = other, site
            continue
        if _family(kind) != _family(other):
            raise ConfigError(f"column {name} of {table} is {kind} at {seen[name]} and {other} at {site}", where="tables of the sites", remedy="give it one type everywhere, such as by a view with CAST")  # fmt: skip
        text = f"DESCRIBE SELECT CAST(NULL AS {kind}) AS x UNION ALL SELECT CAST(NULL AS {other})"
        with shadow(Catalog({})) as connection:  # opened for types that differ alone: it takes as long as all else here
            known[name] = str(connection.execute(text).fetchone()[1])


def _family(kind: str) -> str:
    head = kind.partition("(")[0]
    if ("INT" in head and head != "INTERVAL") or head in ("DECIMAL", "DOUBLE", "FLOAT"):
        return "number"
    return "time" if head in ("DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS") else kind


_SHOW = re.compile(r"\s*show\s+tables\s*;?\s*", re.I)
_DESCRIBE = re.compile(r'\s*(?:describe|desc)\s+"?(\w+)"?\s*;?\s*', re.I)


def describe_catalog(text: str, catalog: Catalog, policy: QueryPolicy) -> tuple[tuple[str, ...], tuple[str, ...], list[tuple[Any, ...]]] | None:  # fmt: skip
    """What ``SHOW TABLES`` and ``DESCRIBE table`` show: columns, their types, and rows; ``None`` for another statement.

    Args:
        text: the statement.
        catalog: the tables.
        policy: what all sites allow.

    Raises:
        ConfigError: there is no such table.
    """
    if _SHOW.fullmatch(text):
        names = ("table", "columns", "mode", "unit", "min_count")
        tables = [(t, len(columns), one.mode, one.unit or "rows", policy.min_count) for t, columns in catalog.named_tables().items() for one in (policy.table(_first_part(catalog, t)),)]  # fmt: skip
        return names, ("VARCHAR", "BIGINT", "VARCHAR", "VARCHAR", "BIGINT"), tables
    found = _DESCRIBE.fullmatch(text)
    if found is None:
        return None
    table = found[1].lower()
    known = catalog.named_tables()
    if table not in known:
        raise _refuse_table(found[1], table, catalog, known)
    rows: list[tuple[str | None, ...]] = []
    for name, kind in known[table].items():
        parts = catalog.vertical[table][1] if table in catalog.vertical else (table,)
        part = next(one for one in parts if name.lower() in map(str.lower, catalog.tables[one]))
        one = policy.table(part).column(name)
        rows.append((name, kind, one.level, one.release, "local" if one.local else None))
    for name, point in catalog.points.get(table, {}).items():
        level = max((policy.table(table).column(column).level for column in point.columns), key=LEVELS.index)
        rows.append((name, f"POINT of {', '.join(point.columns)}", level, None, None))
    return ("column", "type", "level", "release", "join"), ("VARCHAR",) * 5, rows


def _first_part(catalog: Catalog, table: str) -> str:
    return catalog.vertical[table][1][0] if table in catalog.vertical else table


# ---------------------------------------------------------------- parsing

BEGIN = re.compile(r"(?:\s+|--[^\n]*(?:\n|$)|/\*.*?\*/)*", re.S)
"""What may stand before a statement: blanks and comments."""
_EXPLAIN = re.compile(r"explain(\s+analyze)?\s+", re.I)


def parse_statement(text: str, catalog: Catalog, params: Sequence[Any] | Mapping[str, Any] = ()) -> SqlStatement:
    """Parse one SELECT, or EXPLAIN [ANALYZE] of one.

    Args:
        text: the SQL; a semicolon may end it.
        catalog: the tables.
        params: values of ``?`` in order, or of ``$name`` by name.

    Raises:
        ConfigError: it is not one SELECT over tables of the catalog; the text points to the place.
    """
    frozen = tuple(params.items()) if isinstance(params, Mapping) else tuple(params)
    try:
        hash(frozen)
    except TypeError:
        raise ConfigError(f"params={params!r}", where="sql", remedy="give plain values: numbers, text, dates, None") from None  # fmt: skip
    points = tuple((table, *found.items()) for table, found in catalog.points.items())
    vertical = tuple(catalog.vertical.items())
    try:
        return _parsed(text, catalog.key(), points, catalog.partial, vertical, frozen, isinstance(params, Mapping), count_rules())  # fmt: skip
    except RecursionError:
        raise ConfigError("the statement is nested too deeply to be read", where="sql", remedy="write fewer parentheses in each other, and IN (…) for many OR") from None  # fmt: skip


@functools.lru_cache(maxsize=64)
def _parsed(
    text: str, key: Any, points: Any, partial: Any, vertical: Any, params: tuple[Any, ...], named: bool, rules: int
) -> SqlStatement:
    del rules  # a rule that has been added since is a new way to read the same text
    sqlglot = need("sqlglot", "sql", "SQL over silos")
    catalog = Catalog({table: dict(columns) for table, *columns in key}, {table: dict(found) for table, *found in points}, partial, dict(vertical))  # fmt: skip
    body, explain = without_explain(text)
    _require_query(body, len(text) - len(body), text)
    try:
        trees = [tree for tree in sqlglot.parse(body, dialect="duckdb") if tree is not None]
    except sqlglot.errors.SqlglotError as error:
        raise _syntax_error(error, text, len(text) - len(body)) from None
    offset = len(text) - len(body)
    if len(trees) != 1:
        raise ConfigError("this is no statement" if not trees else f"these are {len(trees)} statements", where="sql", remedy="write one SELECT")  # fmt: skip
    tree = trees[0]
    selects = (sqlglot.exp.Select, sqlglot.exp.SetOperation, sqlglot.exp.Subquery)
    if not isinstance(tree, selects):
        raise ConfigError(f"{type(tree).__name__.upper()} is not allowed: silos are only read", where="sql", remedy="write a SELECT")  # fmt: skip
    set_params(sqlglot, tree, params, named)
    calls = expand_rules(tree, catalog.named_tables(), lambda node: _at(node, text, offset), catalog.points)
    _require_limits(sqlglot.exp, tree, text, offset)
    _require_allowed(sqlglot, tree, text, offset)
    _require_short_texts(sqlglot.exp, tree, text, offset)
    _require_tables(sqlglot, tree, catalog, text, offset)
    sql = _plain_text(tree, body, anew=bool(params or calls))
    joins = _join_parts(sqlglot.exp, tree, catalog)
    spatial = expand_points(tree, catalog.points, lambda node: _at(node, text, offset))
    marks = {"matching": expand_matched, "stay": expand_runs}
    needs = frozenset([name for name, expand in marks.items() if expand(tree, lambda node: _at(node, text, offset))])
    _require_columns(sqlglot, tree, catalog, text, offset)
    columns, types = _describe(
        tree.sql("duckdb") if params or spatial or calls or needs or joins else body.strip().removesuffix(";"), catalog
    )
    found = _qualified(sqlglot, tree, catalog)
    pooled = break_ties(found) if spatial or "stay" in needs else sql
    return SqlStatement(text, found, columns, types, explain, sql, pooled, (*calls, *joins), needs)


def _plain_text(tree: Any, body: str, *, anew: bool) -> str:
    """The SELECT as it was written, so that a site in this process need not parse it again, unless it is written anew, or has comments, which may end after the last line."""
    return str(tree.sql("duckdb")) if anew or "--" in body or "/*" in body else body.strip().removesuffix(";").rstrip()


def without_explain(text: str) -> tuple[str, str]:
    """What stands behind EXPLAIN and what may precede it, and ``"explain"``, ``"analyze"`` or nothing."""
    start = text[BEGIN.match(text).end() :]  # type: ignore[union-attr]  # it matches nothing at least
    found = _EXPLAIN.match(start)
    return (start[found.end() :], "analyze" if found[1] else "explain") if found else (start, "")


def _require_query(body: str, offset: int, text: str) -> None:
    """Refuse by the first word what is no query."""
    word = re.match(r"\(*\s*(\w*)", body)
    first = word[1].upper() if word else ""
    if first not in ("SELECT", "WITH", "FROM", "VALUES"):
        shown = first or (body[:1] or "an empty text")
        raise ConfigError(f"{shown} is not allowed: silos are only read{_caret(text, offset)}", where="sql", remedy="write a SELECT")  # fmt: skip


def _near(wrong: str, known: Iterable[str]) -> str:
    """The nearest name, as SQL writes it."""
    return nearest(wrong, known).replace("'", "")


def _caret(text: str, place: int) -> str:
    """The line of a place, and a caret below it."""
    begin = text.rfind("\n", 0, place) + 1
    end = text.find("\n", place)
    line = text[begin : len(text) if end < 0 else end]
    number = text.count("\n", 0, place) + 1
    head = f"LINE {number}: "
    return f"\n{head}{line}\n{' ' * (len(head) + place - begin)}^"


def _syntax_error(error: Any, text: str, offset: int) -> ConfigError:
    found = (getattr(error, "errors", None) or [{}])[0]
    what = re.sub(r"<Token .*?>", lambda m: "the end" if "SENTINEL" in m[0] else repr(found.get("highlight", "")), str(found.get("description") or str(error).partition("\n")[0]))  # fmt: skip
    line, column, width = found.get("line"), found.get("col"), len(found.get("highlight") or "")
    if not line:
        return ConfigError(what, where="sql", remedy="correct the statement")
    lines = text[offset:].split("\n")
    place = offset + sum(len(one) + 1 for one in lines[: line - 1]) + max(0, column - max(width, 1))
    if "the end" in what:
        place = len(text)
    return ConfigError(f"{what}{_caret(text, place)}", where="sql", remedy="correct the statement")


def set_params(sqlglot: Any, tree: Any, params: tuple[Any, ...], named: bool) -> None:
    """Put values in the places of parameters."""
    exp = sqlglot.exp
    values = dict(params) if named else {}
    left = list(() if named else params)
    used: set[str] = set()
    for one in list(tree.find_all(exp.Placeholder, exp.Parameter)):
        name = str(one.name or (one.this.name if one.this is not None and hasattr(one.this, "name") else "") or "")
        if not named and name.isdigit() and 0 < int(name) <= len(params):
            value = params[int(name) - 1]
            left = []
        elif not named and name in ("", "?") and left:
            value = left.pop(0)
        elif named and name in values:
            value = values[name]
            used.add(name)
        else:
            raise ConfigError(f"the parameter {name or '?'} has no value", where="params", remedy="give one value for each ?, or a mapping for $name")  # fmt: skip
        one.replace(exp.convert(value))
    if left or set(values) - used:
        raise ConfigError(f"{len(left) or len(set(values) - used)} params that the statement does not use", where="params", remedy="give one value for each ?, or a mapping for $name")  # fmt: skip


_FUNCTIONS = frozenset(
    """abs acos asin atan atan2 cbrt ceil ceiling concat contains cos date_part datepart degrees day dayofmonth dayofweek dayofyear ends_with epoch even exp floor
    greatest hour instr isfinite isinf isnan isodow last_day lcase least len length levenshtein ln log log10 log2 lower lpad ltrim make_date mod month nullif pi pow
    power prefix quarter radians regexp_extract regexp_full_match regexp_matches repeat replace reverse round rpad rtrim second sign sin sqrt starts_with strftime
    strpos strptime substr substring suffix tan trim trunc ucase upper week weekofyear year minute century decade ifnull coalesce try_strptime date_sub
    datesub date_add gcd lcm bit_count initcap cast try_cast extract date_trunc date_diff datediff concat_ws if date strip_accents left right quantize
    count sum avg min max var_samp var_pop variance stddev stddev_samp stddev_pop corr covar_samp covar_pop count_if exists any all in median mode quantile
    quantile_cont quantile_disc approx_quantile approx_count_distinct string_agg listagg bool_and bool_or first last arg_min arg_max row_number rank dense_rank
    percent_rank cume_dist ntile lag lead first_value last_value nth_value geomean skewness kurtosis regr_slope regr_intercept regr_r2 grouping grouping_id
    dwithin knn distance distancesphere point matched eachpoint runnumber""".split()  # noqa: SIM905 - a list for people
)
"""Functions that only compute from their arguments, by the names that DuckDB's text has."""
_REFUSED_NODES = (
    "Insert", "Update", "Delete", "Merge", "Create", "Drop", "Alter", "Command", "Copy", "Attach", "Detach", "Pragma", "Set", "Into", "Use", "Describe", "Summarize", "Lateral", "Unnest",
    "TableSample", "Pivot", "Collate", "MatchRecognize", "Placeholder", "Parameter", "SessionParameter", "Lambda", "Explode", "Export", "Install", "Show", "TableColumn",
)  # fmt: skip
_REFUSED_FUNCTIONS = (
    "Rand", "Randn", "Randstr", "Uuid", "CurrentDate", "CurrentTime", "CurrentTimestamp", "CurrentUser", "CurrentSchema", "CurrentCatalog", "CurrentDatabase", "CurrentDatetime", "SessionUser",
    "CurrentTimestampLTZ", "CurrentTimezone", "Localtime", "Localtimestamp", "ReadCSV", "ReadParquet", "ParameterizedAgg", "CombinedParameterizedAgg", "GenerateSeries", "Sequence", "XMLTable", "OpenJSON", "ExternalQuery", "CurrentRole", "SHA", "CurrentVersion", "Version",
)  # fmt: skip


def _require_allowed(sqlglot: Any, tree: Any, text: str, offset: int) -> None:
    """Refuse what is no plain reading of tables."""
    exp = sqlglot.exp
    refused = tuple(getattr(exp, name) for name in _REFUSED_NODES if hasattr(exp, name))
    barred = tuple(getattr(exp, name) for name in _REFUSED_FUNCTIONS if hasattr(exp, name))
    for node in tree.walk():
        if isinstance(node, (*refused, *barred)):
            _refuse(node, text, offset)
        elif isinstance(node, exp.Table) and not isinstance(node.this, exp.Identifier):
            _refuse(node.this, text, offset)
        elif isinstance(node, exp.And | exp.Or):
            continue  # no functions, though of sqlglot's class; the text of each of a thousand would be as long as all
        elif isinstance(node, exp.Func) and (name := _function_of(node)) not in _FUNCTIONS:
            raise ConfigError(f"the function {name} is not one that silos run{_at(node, text, offset)}.{_near(name, _FUNCTIONS)}", where="sql", remedy="use functions that compute from their arguments alone")  # fmt: skip
        elif isinstance(node, exp.With) and node.args.get("recursive"):
            raise ConfigError("WITH RECURSIVE is not allowed: it may never end", where="sql", remedy="write it without RECURSIVE")  # fmt: skip


def _require_limits(exp: Any, tree: Any, text: str, offset: int) -> None:
    """Write FETCH as LIMIT, and refuse limits that are no whole numbers: a part of rows that differ by site is none of all rows."""
    for node in list(tree.find_all(exp.Limit, exp.Fetch, exp.Offset)):
        number = node.args.get("count") if isinstance(node, exp.Fetch) else node.expression
        options = node.args.get("limit_options")
        odd = options is not None and (options.args.get("percent") or options.args.get("with_ties"))
        if odd or not isinstance(number, exp.Literal) or not number.name.isdigit():
            raise ConfigError(f"{node.sql('duckdb').strip()} is no number of rows{_at(node, text, offset)}", where="sql", remedy="write a whole number")  # fmt: skip
        if isinstance(node, exp.Fetch):
            node.replace(exp.Limit(expression=number.copy()))


_MOST_GROWTH = 10_000
"""How many times longer a statement may make a text: what is long where a row has a value, and short where it has another, takes time or memory that tells of the row."""


def _require_short_texts(exp: Any, tree: Any, text: str, offset: int) -> None:
    """Refuse to make long texts of short ones."""
    growth = 1
    for node in tree.find_all(exp.Repeat, exp.Pad, exp.Replace, exp.DPipe, exp.Concat, exp.ConcatWs):
        if isinstance(node, exp.Repeat | exp.Pad):
            times = node.args["times"] if isinstance(node, exp.Repeat) else node.expression
            if not (isinstance(times, exp.Literal) and times.name.isdigit() and int(times.name) <= _MOST_GROWTH):
                raise ConfigError(f"{node.sql('duckdb')} may be long, and how long it takes tells of rows{_at(node, text, offset)}", where="sql", remedy=f"write a whole number up to {_MOST_GROWTH:,}")  # fmt: skip
            growth *= max(1, int(times.name)) if isinstance(node, exp.Repeat) else 1
        elif isinstance(node, exp.Replace):
            old, new = node.expression, node.args.get("replacement")
            growth *= max(1, -(-len(new.name) // max(1, len(old.name)))) if isinstance(new, exp.Literal) else 1 + 9 * (new is not None)  # fmt: skip
        elif not isinstance(node.parent, exp.DPipe):
            parts = [one.sql() for one in node.find_all(exp.Column)]
            growth *= max(map(parts.count, parts), default=1)
        if growth > _MOST_GROWTH:
            raise ConfigError(f"texts become more than {_MOST_GROWTH:,} times longer, and how long that takes tells of rows{_at(node, text, offset)}", where="sql", remedy="repeat, replace and join less")  # fmt: skip


def _function_of(node: Any) -> str:
    """The name of a function in DuckDB's text; one that is allowed for what is written without a name, such as CASE."""
    if type(node).__name__.startswith("Anonymous"):  # its text may have the name in quotes
        return str(node.name).lower()
    found = re.match(r"(\w+)\(", node.sql("duckdb"))
    return found[1].lower() if found else "cast"


def _refuse(node: Any, text: str, offset: int) -> None:
    name = node.name if type(node).__name__ == "Anonymous" else type(node).__name__.upper()
    raise ConfigError(f"{name} is not allowed{_at(node, text, offset)}", where="sql", remedy="read tables of the catalog, with functions that compute from their arguments alone")  # fmt: skip


def _at(node: Any, text: str, offset: int) -> str:
    place = next((one.meta["start"] for one in node.walk() if "start" in one.meta), None)
    return "" if place is None else _caret(text, offset + int(place))


def _require_tables(sqlglot: Any, tree: Any, catalog: Catalog, text: str, offset: int) -> None:
    """Refuse tables that are not in the catalog."""
    exp = sqlglot.exp
    named = {one.alias.lower() for one in tree.find_all(exp.CTE)}
    for table in tree.find_all(exp.Table):
        name = table.name.lower()
        if table.db or table.catalog or name not in {*catalog.tables, *catalog.vertical, *named}:
            shown = ".".join(part.name for part in table.parts)
            raise _refuse_table(shown, "" if table.db or table.catalog else name, catalog, [*catalog.named_tables(), *named], _at(table, text, offset))  # fmt: skip


def _join_parts(exp: Any, tree: Any, catalog: Catalog) -> tuple[tuple[str, str], ...]:
    """Write the join of its parts where a table's columns lie apart, all of them whatever is read: a part that lacks a row takes it from the table. Changes the tree.

    Returns:
        Each such table, and what stands in its place.

    Raises:
        ConfigError: a WITH has the table's name.
    """
    found: dict[str, str] = {}
    for node in list(tree.find_all(exp.Table)):
        table = node.name.lower()
        if table not in catalog.vertical:
            continue
        if any(one.alias.lower() == table for one in tree.find_all(exp.CTE)):
            raise ConfigError(f"WITH {node.name} has the name of a table whose columns lie apart", where="sql", remedy="give what WITH names another name")  # fmt: skip
        key, parts = catalog.vertical[table]
        homes = {name.lower(): part for part in reversed(parts) for name in catalog.tables[part]}
        columns = [exp.alias_(exp.column(name, table=homes[name], quoted=True), name, quoted=True) for name in catalog.named_tables()[table]]  # fmt: skip
        made = exp.select(*columns).from_(exp.to_table(quote(parts[0]), dialect="duckdb"))
        for part in parts[1:]:
            on = exp.EQ(this=exp.column(key, table=parts[0], quoted=True), expression=exp.column(key, table=part, quoted=True))  # fmt: skip
            made = made.join(exp.to_table(quote(part), dialect="duckdb"), on=on)
        found[table] = made.sql("duckdb")
        alias = node.args.get("alias") or exp.TableAlias(this=exp.to_identifier(node.name, quoted=True))
        node.replace(exp.Subquery(this=made, alias=alias.copy(), joins=node.args.get("joins")))
    return tuple(found.items())


def _qualified(sqlglot: Any, tree: Any, catalog: Catalog) -> Any:
    """The tree with every column's table named, in lower case."""
    from sqlglot.optimizer.qualify import qualify

    schema: dict[str, object] = {table: {name.lower(): kind for name, kind in columns.items()} for table, columns in catalog.tables.items()}  # fmt: skip
    try:
        made = qualify(_name_subqueries(sqlglot.exp, tree.copy()), schema=schema, dialect="duckdb")
        return _expand_positions(sqlglot.exp, made)
    except sqlglot.errors.SqlglotError as error:
        raise ConfigError(str(error).partition("\n")[0], where="sql", remedy="name columns with their tables: patients.age") from None  # fmt: skip


def _expand_positions(exp: Any, tree: Any) -> Any:
    """The tree with expressions in the place of their numbers in ROLLUP, CUBE and GROUPING SETS, where sqlglot leaves these. Changes the tree."""
    for node in list(tree.find_all(exp.Rollup, exp.Cube, exp.GroupingSets)):
        select = node.find_ancestor(exp.Select)
        for key in list(node.find_all(exp.Literal)):
            if not key.is_string and isinstance(key.parent, exp.Rollup | exp.Cube | exp.GroupingSets | exp.Tuple | exp.Paren):  # fmt: skip
                key.replace(select.expressions[int(key.name) - 1].unalias().copy())
    return tree


def _name_subqueries(exp: Any, tree: Any) -> Any:
    """The tree with a name around each subquery of a select list that has none. Changes the tree.

    sqlglot writes one into the subquery itself, where ``unalias`` leaves it, and cannot sort by its place then.
    """
    for place, one in enumerate(list(tree.find_all(exp.Subquery))):
        if isinstance(one.parent, exp.Select) and one.arg_key == "expressions":
            one.replace(exp.Alias(this=one.copy(), alias=exp.to_identifier(f"_sub_{place}", quoted=True)))
    return tree


def _require_columns(sqlglot: Any, tree: Any, catalog: Catalog, text: str, offset: int) -> None:
    """Refuse columns that no table in the statement and no name in it has."""
    exp = sqlglot.exp
    tables = {table.name.lower() for table in tree.find_all(exp.Table)} & set(catalog.tables)
    own = {one.alias.lower() for one in tree.find_all(exp.Alias)}
    own |= {name.name.lower() for one in tree.find_all(exp.TableAlias) for name in one.args.get("columns") or ()}
    known = {name.lower(): table for table in sorted(tables) for name in catalog.tables[table]}
    for column in tree.find_all(exp.Column):
        if isinstance(column.this, exp.Star) or column.name.lower() in own or column.name.lower() in known:
            continue
        wholes = {part: whole for whole, (_, parts) in catalog.vertical.items() for part in parts}
        at = ", ".join(sorted({wholes.get(table, table) for table in tables}))
        raise ConfigError(f"no column {column.name} in {at}.{_near(column.name.lower(), [*known, *own])}{_at(column, text, offset)}", where="sql", remedy=f"use {', '.join(known)}")  # fmt: skip


@functools.lru_cache(maxsize=16)
def _shadow(key: Any) -> Any:
    made = connect_duckdb(memory=1 << 30, threads=1)
    for table, *columns in key:
        shown = ", ".join(f"{quote(name)} {kind}" for name, kind in columns)
        for name in (table, SOURCE + table):
            made.execute(f"CREATE TABLE {quote(name)} ({shown})")
    lock_connection(made)
    return made


def shadow(catalog: Catalog) -> Any:
    """A cursor of a DuckDB with the catalog's tables, all empty, also under their names in local SQL: it knows types and finds what is wrong, and sees no row."""
    return _shadow(catalog.key()).cursor()


def _describe(body: str, catalog: Catalog) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names and types of the result's columns."""
    with shadow(catalog) as connection:
        try:
            rows = connection.execute(f"DESCRIBE {body}").fetchall()
        except Exception as error:  # DuckDB's own words: they quote the statement, and there are no rows
            said = re.sub(r"^[\w ]+ Error: ", "", str(error).strip())
            raise ConfigError(said.partition("\n\n")[0], where="sql", remedy="correct the statement") from None  # fmt: skip
    return tuple(str(row[0]) for row in rows), tuple(str(row[1]) for row in rows)
