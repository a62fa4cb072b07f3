"""What one site computes for a statement: the plan of its own, local SQL over one snapshot, and the record of what it has answered."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError, DataError, PolicyError
from atoll.core.extras import need
from atoll.statistics.answered import AnswerRecord, with_entry

from .databases.silo import Silo, bounded_cell, quote
from .indexes.narrowing import narrow_tables
from .plan import ROW, QueryPlan, Released, digest_rows_text, make_plan
from .policy import QueryPolicy, strictest
from .statement import SOURCE, Catalog, SqlStatement, parse_statement, with_declared
from .strategies.groupings import make_sums_plan
from .strategies.strategy import Strategy, permits_strategy, read_strategy
from .strategies.unit_sets import AnsweredCells, SetRows, UnitRows

if TYPE_CHECKING:
    from atoll.secure.owners import OwnerCircle

__all__ = [
    "LocalCells",
    "StatementCells",
    "digest_request",
    "digest_rows",
    "find_few",
    "local_cells",
    "message_of",
    "names_of",
    "keep_units",
    "open_record",
    "plan_of",
    "plan_once",
    "prefix_of",
    "record_units",
    "silo_of",
    "source_text",
    "units_text",
]

Cell = tuple[str | None, ...]
RECORD = "query-answered"
"""Name of the record among the results that stay at a site; a table's name follows."""
_TRIES = 50
"""How often an answer is compared anew: other jobs of the same site write to its record too."""


def silo_of(data: Any) -> Silo:
    """A site's data as a silo.

    Raises:
        DataError: they are something else.
    """
    if not isinstance(data, Silo):
        raise DataError(f"the data of this site are a {type(data).__name__}, and a query needs a silo", where="query", remedy="give atoll.query.open_silo(path, policy)")  # fmt: skip
    return data


@functools.lru_cache(maxsize=64)
def _plan_of(make: Callable[..., Any], text: str, catalog: str, policy: str) -> Any:
    strict = strictest([json.loads(policy)])
    tables = with_declared(Catalog(json.loads(catalog)), strict)
    return make(parse_statement(text, tables), tables, strict)


def plan_once(
    make: Callable[..., Any], text: str, tables: Mapping[str, Mapping[str, str]], policies: Sequence[Mapping[str, Any]]
) -> Any:
    """A plan, made once for the same statement, tables and strictest policy: the coordinator and its sites in one process share it.

    Args:
        make: makes a plan of a statement, the catalog and the strictest policy.
        text: the statement.
        tables: table -> column -> type.
        policies: what each site tells of its policy; see `QueryPolicy.told`.
    """
    lower = {table: [c.lower() for c in columns] for table, columns in tables.items()}
    return _plan_of(make, text, json.dumps(tables), json.dumps(strictest(policies).told(lower)))


def plan_of(silo: Silo | None, message: Mapping[str, Any], make: Callable[..., Any] = make_plan, by: str = "sums") -> Any:  # fmt: skip
    """The plan that a site makes itself, by the stricter of the coordinator's word and its own policy.

    Args:
        silo: the site; ``None`` for a helper, which has no policy.
        message: the request; see `message_of`.
        make: makes a plan of a statement, the catalog and the strictest policy.
        by: the strategy whose task asks.

    Raises:
        PolicyError: the policy does not allow it, nobody has signed it, or the task is not one of the request's strategy.
        CompositionError: the strategy cannot answer it.
    """
    catalog = {str(table): dict(columns) for table, columns in message["catalog"].items()}
    told = [_plain(message["policy"])]
    if silo is not None:
        silo.read_schema()  # what the policy calls the site's own parts depends on their columns
        apart = {table for table, one in told[0]["tables"].items() if one["mode"] == "vertical"}
        told.append(silo.policy.told(catalog, apart))
    text, policies = str(message["sql"]), told[::-1]
    strategy = read_strategy(message)
    if silo is not None and silo.signed is not None:
        _require_signed(silo, text, strategy, strictest(policies), catalog, message)
    # A strategy that hands its plan over is asked for it: whoever says that it does may lie.
    if by != strategy.name and by != strategy.carrier(plan_once(strategy.plan, text, catalog, policies)):
        raise PolicyError(f"a task of the strategy {by} is asked for, and the statement is answered by {strategy.name}", where="query" if silo is None else silo.name, remedy="look at the coordinator: it asks for something else than the job says")  # fmt: skip
    return plan_once(make, text, catalog, policies)


def _require_signed(silo: Silo, text: str, strategy: Strategy, policy: QueryPolicy, catalog: Mapping[str, Any], message: Mapping[str, Any]) -> None:  # fmt: skip
    """Refuse a statement, a strategy or a setting of it that is not that of the job: the coordinator may have altered it.

    Args:
        silo: the site.
        text: the statement with its parameters, as the coordinator sends it.
        strategy: the strategy with its settings, as the coordinator sends them.
        policy: what the sites allow.
        catalog: the tables, as the coordinator sends them.
        message: the request, which names the relations that parties kept.

    Raises:
        PolicyError: the job's own statement, read over these tables, is another, or it asks for another strategy or other settings, or for other relations.
    """
    tables = with_declared(Catalog(catalog), policy)
    read = [(one, parse_statement(one.sql, tables, one.params)) for one in silo.signed or ()]
    kept = message.get("kept") or {"ids": {}, "creates": ""}
    alike = [(job, statement) for job, statement in read if statement.sql == text and statement.explain != "explain" and (dict(job.kept), job.creates) == (dict(kept["ids"]), kept["creates"])]  # fmt: skip
    if not alike:
        raise PolicyError("the statement is not the one that was signed", where=silo.name, remedy="look at the coordinator: it asks for something else than the job says")  # fmt: skip
    if not any(
        permits_strategy(job.asks(), strategy, statement, tables, policy, job.wants()) for job, statement in alike
    ):
        said = ", ".join(f"{name}={value}" for name, value in strategy.told().items() if name != "name")
        raise PolicyError(f"the strategy {strategy.name} with {said or 'no settings'} is not the one that was signed", where=silo.name, remedy="look at the coordinator: it asks for something else than the job says")  # fmt: skip


def message_of(statement: SqlStatement, catalog: Catalog, policy: QueryPolicy, first: str, strategy: Strategy) -> dict[str, Any]:  # fmt: skip
    """What a site needs to make a statement's plan itself.

    Args:
        statement: the statement.
        catalog: the tables.
        policy: the strictest policy, as the coordinator knows it.
        first: the site that answers for all, where every site has all rows.
        strategy: what answers it.
    """
    tables = {table: dict(columns) for table, columns in catalog.tables.items()}
    told = policy.told({table: [c.lower() for c in columns] for table, columns in tables.items()})
    return {"sql": statement.sql, "catalog": tables, "policy": told, "first": first, "strategy": strategy.told()}


def digest_request(request: Mapping[str, Any], parties: Sequence[str]) -> bytes:
    """What is computed, in 16 bytes: sites compare theirs, so that a coordinator cannot ask them different things, or name other parties to them.

    Args:
        request: the request.
        parties: the sites, in order.
    """
    told = json.dumps([request, list(parties)], sort_keys=True, default=lambda one: dict(one) if isinstance(one, Mapping) else list(one))  # fmt: skip
    return hashlib.blake2b(told.encode(), digest_size=16).digest()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def source_text(catalog: Catalog, policy: QueryPolicy, table: str, columns: Sequence[str], name: str, where: str = "") -> str:  # fmt: skip
    """Local SQL of a table with the types of the catalog and the number of each row; values outside the site's own range are NULL.

    Args:
        catalog: the tables.
        policy: the site's own policy.
        table: the table, in lower case.
        columns: its columns that are read, as the catalog writes them.
        name: the table, as the source writes it; empty for a part that other sites have, without rows here.
        where: local SQL of which rows are looked at; empty for all.
    """
    types = catalog.tables[table]
    if not name:
        none = [f"CAST(NULL AS {types[one]}) AS {quote(one.lower())}" for one in columns]
        return f"SELECT {', '.join([*none, f'CAST(0 AS BIGINT) AS {quote(ROW)}'])} WHERE false"
    shown = [f"{bounded_cell(policy, table, one, types[one])} AS {quote(one.lower())}" for one in columns]
    return (
        f"SELECT {', '.join([*shown, f'rowid AS {quote(ROW)}'])} FROM main.{quote(name)}{where and f' WHERE {where}'}"
    )


def prefix_of(silo: Silo, plan: Any, names: Mapping[str, str], narrowed: Mapping[str, str] | None = None) -> str:
    """The WITH before local SQL of a plan: its tables as they count here, and the statement's own.

    Args:
        silo: the site.
        plan: the plan.
        names: table -> as the source writes it.
        narrowed: table -> which rows are looked at; see `atoll.query.indexes.narrowing`.
    """
    made = [f"{quote(SOURCE + table)} AS ({source_text(plan.catalog, silo.policy, table, columns, names[table], (narrowed or {}).get(table, ''))})" for table, columns in plan.sources.items()]  # fmt: skip
    return "WITH " + ", ".join([*made, *([plan.common] if plan.common else [])])


def digest_rows(silo: Silo, asked: Mapping[str, Mapping[str, str]], key: str) -> dict[str, str]:
    """The number of rows of tables, and a digest of them in any order under a key of the statement: the sum of MD5 over rows, modulo 2^128.

    Args:
        silo: the site.
        asked: table in lower case -> column -> its type, as in the catalog.
        key: the key.

    Raises:
        PolicyError: a column is private here.
    """
    names, texts = {name.lower(): name for name in silo.read_schema()}, []
    for table, types in asked.items():
        private = next((name for name in types if silo.policy.table(table).column(name).level == "private"), None)
        if private is not None:
            raise PolicyError(f"compares {table}.{private}, which is private", where=silo.name, remedy="leave the column out")  # fmt: skip
        source = source_text(Catalog({table: dict(types)}), silo.policy, table, list(types), names[table])
        cells = ", ".join(f"coalesce(replace(CAST({quote(name.lower())} AS VARCHAR), '|', '||'), '|n')" for name in sorted(types, key=str.lower))  # fmt: skip
        text = f"concat_ws('|,', '{key}', {cells})"
        halves = ", ".join(f"coalesce(sum(md5_number_{half}({text})::HUGEINT), 0)::VARCHAR" for half in ("lower", "upper"))  # fmt: skip
        texts.append(f"SELECT count(*), {halves} FROM ({source})")
    found = silo.run_all(texts, [names[table] for table in asked])
    return {table: f"{int(n):016x}{(int(low) + (int(high) << 64)) % (1 << 128):032x}" for table, ((n, low, high),) in zip(asked, found, strict=True)}  # fmt: skip


class LocalCells:
    """The cells of one grouping of a statement at one site; `StatementCells` reads them.

    Args:
        silo: the site.
        plan: its plan.
        lone: whether this site answers for all, if every site has all rows.

    Attributes:
        plan: the plan.
        names: table -> as the source writes it.
        listed: local SQL of the keys that could occur; empty without keys.
        possible: keys that could occur.
        arrow: those of the texts whose answers are read as Arrow: they have a row for each unit.
        members: for each released table, the units with their cell and conditions; only if few units must not show.
        entities: for each released table, Arrow's table of all its units.
    """

    def __init__(self, silo: Silo, plan: QueryPlan, *, lone: bool) -> None:
        self.plan, self._silo = plan, silo
        self.names = names_of(silo, plan)
        self._speaks = lone or not plan.lone
        self.listed = self._keys_text() if plan.keys else ""

    def write_texts(self, run: Any, kept: dict[Any, Any]) -> list[str]:
        """The local SQL of what `take_rows` takes; see `Silo.run_all`."""
        plan = self.plan
        narrowed = narrow_tables(self._silo.policy, plan, self.names, run, kept)
        texts = [self._cells_text(narrowed), *([self.listed] if plan.keys else [])]
        self.arrow = frozenset[str]()
        if plan.counted:
            texts += [f"{self._with(narrowed)} {plan.cell_sets.units_text(one, plan.body)}" for one in plan.released]
            texts += [units_text(one, plan.catalog, self.names[one.table]) for one in plan.released]
            self.arrow = frozenset(texts[-2 * len(plan.released) :])
        return texts

    def take_rows(self, found: Sequence[Any]) -> None:
        """Take the rows of each text of `write_texts`."""
        plan, keys = self.plan, len(self.plan.keys)
        self._rows = {tuple(row[:keys]): row[keys:] for row in found[0]}
        self.possible: list[Cell] = [tuple(row) for row in found[1]] if plan.keys else []
        rest = found[1 + bool(plan.keys) :]
        self.members = [SetRows.read(plan.cell_sets, one.alias, rows, len(one.bases)) for one, rows in zip(plan.released, rest, strict=False)]  # fmt: skip
        self.entities = rest[len(plan.released) :]

    @property
    def count(self) -> int:
        """How many texts there are."""
        return 1 + bool(self.plan.keys) + (2 * len(self.plan.released) if self.plan.counted else 0)

    # ------------------------------------------------------------------ SQL

    def _with(self, narrowed: Mapping[str, str] | None = None) -> str:
        return prefix_of(self._silo, self.plan, self.names, narrowed)

    def _key_list(self) -> list[str]:
        return [f"CAST({key.local} AS VARCHAR)" for key in self.plan.keys]

    def _counts(self) -> list[str]:
        return [one.count(condition) for condition in self.plan.conditions for one in self.plan.released] if self.plan.counted else []  # fmt: skip

    def _cells_text(self, narrowed: Mapping[str, str]) -> str:
        columns = [column for addend in self.plan.addends for column in addend.columns]
        shown = ", ".join([*self._key_list(), "count(*)", *self._counts(), *columns])
        return f"{self._with(narrowed)} SELECT {shown} {self.plan.body}{self.plan.group}"

    def _keys_text(self) -> str:
        return f"{self._with()} SELECT DISTINCT {', '.join(self._key_list())} {self.plan.key_body}"

    # ------------------------------------------------------------------ numbers

    def units(self, key: Cell) -> list[int]:
        """Units of each condition and released table in one cell."""
        row = self._rows.get(key) if self._speaks else None
        return [0] * self.plan.counted if row is None else [int(one) for one in row[1 : 1 + self.plan.counted]]

    def units_behind(self, keys: Collection[Cell]) -> dict[str, Any]:
        """The names of the units of each released table that have a row in these cells, as Arrow's array."""
        if not self._speaks or not self.plan.counted:
            return {}
        return {one.table: rows.list_units(keys) for one, rows in zip(self.plan.released, self.members, strict=True)}

    def count_rows(self, keys: Collection[Cell]) -> int:
        """How many rows there are in these cells."""
        return sum(int(self._rows[key][0]) for key in keys if key in self._rows) if self._speaks else 0

    def words(self, key: Cell, hidden: Collection[int] = ()) -> list[int]:
        """The number of rows of one cell, and the words of its addends; zeros for those that only withheld aggregates need.

        Args:
            key: the cell.
            hidden: places of the aggregates that are withheld.
        """
        row = self._rows.get(key) if self._speaks else None
        if row is None:
            return [0] * (1 + self.plan.words)
        made, start = [int(row[0])], 1 + self.plan.counted
        told = {place for k, one in enumerate(self.plan.aggregates) if k not in hidden for place in one.addends}
        for place, addend in enumerate(self.plan.addends):
            made += addend.encode(row[start : start + len(addend.columns)]) if place in told else [0] * addend.words
            start += len(addend.columns)
        return made


class StatementCells:
    """The cells of all groupings of a statement at one site, of one snapshot.

    Args:
        silo: the site.
        plan: its plan.
        lone: whether this site answers for all, if every site has all rows.

    Attributes:
        plan: the plan.
        parts: the cells of each grouping.
    """

    def __init__(self, silo: Silo, plan: QueryPlan, *, lone: bool = True) -> None:
        self.plan = plan
        self.parts = [LocalCells(silo, one, lone=lone) for one in plan.groupings]

        def write(run: Any, kept: dict[Any, Any]) -> list[str]:
            return [text for one in self.parts for text in one.write_texts(run, kept)]

        names = {name for one in self.parts for name in one.names.values()}
        found = silo.run_all(write, sorted(names), arrow=lambda text: any(text in one.arrow for one in self.parts), stable={one.listed for one in self.parts})  # fmt: skip
        for one in self.parts:
            one.take_rows(found[: one.count])
            found = found[one.count :]

    def behind(self, keys: Sequence[Collection[Cell]]) -> dict[str, int]:
        """How many units of each released table have a row in the cells of any grouping; rows, where units do not count."""
        if not any(one.counted for one in self.plan.groupings):
            rows = max((one.count_rows(told) for one, told in zip(self.parts, keys, strict=True)), default=0)
            return {"rows": rows}
        found: dict[str, list[Any]] = {}
        for one, told in zip(self.parts, keys, strict=True):
            for table, units in one.units_behind(told).items():
                found.setdefault(table, []).append(units)
        chunked = need("pyarrow", "sql", "units of a site").chunked_array
        return {table: len(units[0] if len(units) == 1 else chunked(units).unique()) for table, units in found.items()}


def units_text(one: Released, catalog: Catalog, name: str) -> str:
    """Local SQL of the units of a table, each with a hash of all that its rows hold, and what `Released.digest` is of all of them.

    Args:
        one: the table and its unit.
        catalog: the tables.
        name: the table, as the source writes it; empty for a part that other sites have.
    """
    types = catalog.tables[one.table]
    none = ", ".join(f"CAST(NULL AS {kind}) AS {quote(column)}" for column, kind in types.items())
    table = f"main.{quote(name)}" if name else f"(SELECT {none}, CAST(NULL AS BIGINT) AS rowid WHERE false)"
    cells = ", ".join(f"coalesce(replace(CAST({quote(column)} AS VARCHAR), '|', '||'), '|n')" for column in sorted(types))  # fmt: skip
    digest = f"md5(concat_ws('|,', {cells}))"
    if not one.unit:
        return f"SELECT CAST(rowid AS VARCHAR) AS unit, md5_number_lower({digest}) AS held, {digest_rows_text('rowid')} AS every FROM {table} GROUP BY ALL"  # fmt: skip
    column = next(column for column in types if column.lower() == one.unit)
    unit = f"coalesce(CAST(CAST({quote(column)} AS {types[column]}) AS VARCHAR), '')"
    return f"SELECT {unit} AS unit, md5_number_lower(string_agg({digest}, ',' ORDER BY {digest})) AS held, {digest_rows_text('rowid')} AS every FROM {table} GROUP BY 1"  # fmt: skip


def open_record(island: Any, text: str, least: int, table: str, hashes: NDArray[np.uint64]) -> AnswerRecord:
    """A site's record of which units of a table stand behind its answers, of whatever strategy.

    Args:
        island: the site.
        text: the statement.
        least: the minimum count.
        table: the table.
        hashes: of its units.
    """
    return AnswerRecord.of(island, text, least, hashes, f"{RECORD}-{_safe(table)}")


def names_of(silo: Silo, plan: Any) -> dict[str, str]:
    """Table in lower case -> as the source writes it; empty for a part that other sites have."""
    found = silo.name_tables()
    for table in plan.sources:
        if plan.policy.table(table).mode == "vertical" and table not in silo.policy.tables:
            found[table] = ""  # whatever lies here, the site's own policy has not named it a part
    missing = next((table for table in plan.sources if table not in found), None)
    if missing is not None:
        raise ConfigError(f"no table {missing} is here", where=silo.name, remedy=f"use {', '.join(found)}")
    return {table: found[table] for table in plan.sources}


def local_cells(island: Any, message: Mapping[str, Any], *, fresh: bool) -> StatementCells:
    """The cells of a statement at a site, of one snapshot for all of its requests.

    Args:
        island: the site.
        message: the request.
        fresh: whether this is the statement's first request.
    """
    silo = silo_of(island.data)
    plan = plan_of(silo, message, make_sums_plan)
    kept = silo.kept
    if fresh or not isinstance(kept, StatementCells) or kept.plan is not plan:
        kept = StatementCells(silo, plan, lone=island.name == message["first"])
        silo.kept = kept
    return kept


def record_units(island: Any, cells: StatementCells, told: Sequence[Sequence[Cell]], hidden: Sequence[Sequence[Collection[int]]]) -> None:  # fmt: skip
    """Write down which units stand behind the answer of all groupings, before it leaves.

    A grouping is compared with those before it as with the answers of earlier statements: a total less the groups that are shown is a difference like any other.

    Args:
        island: the site.
        cells: its cells.
        told: of each grouping the cells that are answered.
        hidden: of each of these, places of the aggregates that are withheld.

    Raises:
        PolicyError: a grouping differs from an earlier answer, or from another grouping, by too few units.
    """

    def describe() -> Iterable[AnswerRecord]:
        records: dict[str, AnswerRecord] = {}
        for part, mine, few in zip(cells.parts, told, hidden, strict=True):
            _describe_units(island, part, mine, few, records)
        return records.values()

    keep_units(island, describe)


def keep_units(island: Any, describe: Callable[[], Iterable[AnswerRecord]]) -> None:
    """Write records of units down, before the answer leaves.

    Args:
        island: the site.
        describe: compares the answer with the records as they are now, and gives what is to be written.

    Raises:
        PolicyError: the answer differs from an earlier one by too few units.
    """
    for tries in range(_TRIES):
        records = list(describe())
        try:
            for record in records:
                record.keep(island)
        except PolicyError:  # another job has answered meanwhile: this answer is compared with that one too
            if tries == _TRIES - 1:
                raise
        else:
            return


def _describe_units(island: Any, cells: LocalCells, told: Sequence[Cell], hidden: Sequence[Collection[int]], records: dict[str, AnswerRecord]) -> None:  # fmt: skip
    """Take note of the units of one grouping; `records` has what there is to keep of each table."""
    plan = cells.plan
    if not plan.counted or not told:
        return
    places = [{0} | {p for k, one in enumerate(plan.aggregates) if k not in some for p in one.supports} for some in hidden]  # fmt: skip
    # Where a value is missing a sum has 0, so the rows with a value are no further set of rows to a sum.
    divided = {0} | {p for one in plan.aggregates for p in (one.supports if one.name == "count" else one.supports[:-1])}
    for released, members, entities in zip(plan.released, cells.members, cells.entities, strict=True):
        units = UnitRows(entities)
        ways = [AnsweredCells(told, rows, units, lambda cell, place: _cell_name(plan, told[cell], place)) for rows in (members, *members.of_bases())]  # fmt: skip
        sets, mine = ways[0], plan.cell_sets.of_table(released.alias)
        made = [one for way in ways for place in sorted({0}.union(*places)) for one in way.list_rows(place, [place in some for some in places], place in divided)]  # fmt: skip
        if released.whole:  # a unit more or less differs by 1, whatever rows of others there are more
            made += [one for place in sorted({0}.union(*places)) for one in sets.list_rows(place, [place in some for some in places], combined=False, whole=True)]  # fmt: skip
        for k, one in enumerate(mine):
            made += sets.list_products(k, len(mine), one, [one.aggregate not in some for some in hidden])
        record = open_record(island, plan.statement.text, plan.policy.min_count, released.table, units.hashes)
        before = records.get(released.table)
        if before is not None:
            record.kept = with_entry(before.kept, before.request, before.made, before.hashes)
        record.describe(units.pad(made), alone=False)
        records[released.table] = record


async def find_few(circle: OwnerCircle, cells: LocalCells, least: int, comparison: str) -> tuple[bool, list[int]]:
    """Whether too few units stand behind the rows of a statement without groups, and which of its aggregates are withheld: sites together learn whether each number of units is 0, and whether it is enough, and no number.

    Args:
        circle: the sites.
        cells: this site's.
        least: how many are enough.
        comparison: see `atoll.secure.owners.OwnerCircle.reach`.

    Returns:
        Whether there are too few, and places of aggregates.
    """
    plan, units = cells.plan, np.array(cells.units(()), np.int64)
    shape = (len(plan.conditions), len(plan.released))
    enough = (await circle.reach(units, least, comparison)).reshape(shape)
    some = (await circle.any(units > 0)).reshape(shape)
    short: Any = ~enough.all(axis=1)
    odd: Any = (some & ~enough).any(axis=1)
    hidden = [k for k, one in enumerate(plan.aggregates) if short[one.needed].any() or odd[list(one.rests)].any()]  # fmt: skip
    return bool(short[0]), hidden


def _cell_name(plan: QueryPlan, key: Cell, condition: int) -> str:
    words = [f"{one.text} = {'NULL' if value is None else value}" for one, value in zip(plan.keys, key, strict=True)]
    text = plan.conditions[condition].text
    return " and ".join([*words, *([text] if text else [])]) or "the rows"


def _safe(name: str) -> str:
    """A table's name with the letters that names of results have."""
    kept = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name)[:60]
    return kept if kept == name else f"{kept}-{name.encode().hex()[:16]}"
