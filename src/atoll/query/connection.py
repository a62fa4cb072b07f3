"""`connect`: SQL over silos from Python, plainly or as PEP 249 has it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import shutil
import tempfile
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from atoll.core.calls import level_outside
from atoll.core.errors import AtollError, CompositionError, ConfigError, DataError, PolicyError
from atoll.core.extras import need
from atoll.core.persistence.files import as_json

from .databases.postgres import PostgresDatabase, is_postgres
from .databases.silo import Silo, SiloSource, connect_duckdb, quote
from .job import Query
from .kept_relations import KeptRelations
from .local import source_text
from .plan import ROW
from .policy import QueryPolicy, strictest
from .scopes import Scopes
from .statement import Catalog, SqlStatement, parse_statement, unite_schemas, with_declared
from .strategies.strategy import listed_strategies, takes_epsilon, wants_helper

if TYPE_CHECKING:
    from atoll.data import Islands

__all__ = ["JobConnection", "SqlConnection", "Cursor", "SqlResult", "connect", "open_silo"]


class SqlResult:
    """The answer to a statement.

    Args:
        facts: all of it as plain values; see `QueryResult.facts`, with ``seconds``.
        rows: the rows as Python's own values; by default made of the plain ones by their types.
        statement: the statement, if it is known.

    Attributes:
        columns: names of the columns.
        types: DuckDB's types of the columns.
        rows: the rows, as Python's own values: decimals as ``Decimal``, dates as ``date``.
        strategy: the strategy that answered.
        rejected: other strategies, and why they lost.
        plan: the steps: where each ran, in which form its numbers were, and what it did.
        leakage: who learned what, assuming what.
        bytes: bytes that all sites sent and received.
        predicted: bytes that the strategy expected.
        links: bytes on the link of each site.
        seconds: what it took: ``total``, ``local`` and ``secure``.
        expected: ``rounds``, and the ``seconds`` that these and the predicted bytes take on the links: 8 ms each, and 40 MB/s.
        withheld_groups: groups that too few units stand behind; ``None`` for none, or so few that their number would tell of single units.
        withheld_values: NULLs that stand for values that too few units stand behind.
        explained: whether only the plan was asked for.
        privacy: what was spent of a privacy budget; ``None`` for an answer without noise.
        kept: of a relation that stays shared between statements its name, how many rows it has at most, and which parties keep how many bytes of it; ``None`` for an answer.
        approximate: how far numbers may be from exact: ``intervals`` has the lower and the upper end of each row of a column, at a ``confidence``; ``None`` for an exact answer.
    """

    def __init__(
        self,
        facts: Mapping[str, Any],
        rows: list[tuple[Any, ...]] | None = None,
        statement: SqlStatement | None = None,
    ) -> None:
        self._facts, self.statement = dict(facts), statement
        self.columns, self.types = tuple(facts["columns"]), tuple(facts["types"])
        self.explained = bool(facts["explain"])
        self.strategy, self.rejected = str(facts["strategy"]), dict(facts["rejected"])
        self.plan, self.leakage = list(facts["plan"]), list(facts["leakage"])
        self.bytes, self.predicted = int(facts["bytes"]["total"]), int(facts["bytes"]["predicted"])
        self.links, self.seconds = dict(facts["bytes"]["links"]), dict(facts["seconds"])
        self.expected = dict(facts["expected"])
        few = facts["withheld_groups"]
        self.withheld_groups, self.withheld_values = None if few is None else int(few), int(facts["withheld_values"])
        self.privacy, self.approximate, self.kept = facts["privacy"], facts["approximate"], facts.get("kept")
        self.rows = rows if rows is not None else _typed_rows(self.types, facts["rows"])

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows)

    def __repr__(self) -> str:
        return f"<Result of {len(self.rows)} rows: {', '.join(self.columns)}>"

    def arrow(self) -> Any:
        """The rows as a ``pyarrow.Table``, with the types of the statement."""
        need("pyarrow", "sql", "Result.arrow")
        with connect_duckdb() as connection:
            return _relation(connection, self).to_arrow_table()

    def df(self) -> Any:
        """The rows as a ``pandas.DataFrame``.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        need("pandas", "compare", "Result.df")
        with connect_duckdb() as connection:
            return _relation(connection, self).df()

    def facts(self) -> dict[str, Any]:
        """All of it as plain values: decimals and dates as text."""
        return dict(self._facts)

    def with_rows(self, rows: Sequence[tuple[Any, ...]], columns: Sequence[str] = (), types: Sequence[str] = ()) -> SqlResult:  # fmt: skip
        """The same with other rows of plain values, and other columns if some are given."""
        more = {"columns": list(columns), "types": list(types)} if columns else {}
        return SqlResult({**self._facts, "rows": [list(row) for row in rows], **more}, list(rows), self.statement)


def _typed_rows(types: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Plain values as Python's own values of DuckDB's types."""
    with connect_duckdb() as connection:
        _fill_table(connection, types, rows)
        found: list[tuple[Any, ...]] = connection.execute("SELECT * FROM found ORDER BY rowid").fetchall()
        return found


def _relation(connection: Any, result: SqlResult) -> Any:
    names = _fill_table(connection, result.types, result.rows)
    shown = ", ".join(f"{name} AS {quote(column)}" for name, column in zip(names, result.columns, strict=True))
    return connection.sql(f"SELECT {shown} FROM found")


def _fill_table(connection: Any, types: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Make the table ``found`` of rows; the names of its columns."""
    names = [f"c{k}" for k in range(len(types))]
    connection.execute(f"CREATE TABLE found ({', '.join(f'{name} {kind}' for name, kind in zip(names, types, strict=True))})")  # fmt: skip
    if rows:
        connection.executemany(f"INSERT INTO found VALUES ({', '.join('?' * len(names))})", [list(row) for row in rows])
    return names


class SqlConnection:
    """SQL over several silos on this machine.

    Silos keep a record of what they have answered, for as long as the connection is open: an answer that differs from an earlier one by few rows is refused.

    Args:
        silos: name -> silo.
        strategy: how statements are answered, if a statement does not say.
        engine: what runs the silos' parts; a `RecordingEngine` keeps every message.
        folder: keeps the silos' records of what they have answered, also for later connections; by default they end with this one.
    """

    def __init__(
        self,
        silos: Mapping[str, Silo],
        strategy: str = "auto",
        engine: Any = "inline",
        folder: str | Path | None = None,
    ) -> None:
        self.silos, self.strategy, self.engine = dict(silos), strategy, engine
        self._kept = folder is not None
        self._folder = Path(tempfile.mkdtemp(prefix="atoll-query-")) if folder is None else Path(folder)
        self._closed = False
        self.relations = KeptRelations()
        self._stamps: dict[str, dict[str, Any]] = {}

    def sql(
        self,
        text: str,
        params: Sequence[Any] | Mapping[str, Any] = (),
        *,
        strategy: str | None = None,
        epsilon: float | None = None,
        delta: float = 1e-6,
        analyst: str = "",
        error: float | None = None,
        confidence: float = 0.95,
    ) -> SqlResult:
        """Answer a statement.

        Args:
            text: one SELECT, or EXPLAIN of one; or ``CREATE TEMP TABLE … AS SELECT …``, whose rows the parties keep under shares, and ``DROP TABLE``.
            params: values of ``?`` in order, or of ``$name`` by name.
            strategy: how; by default the connection's.
            epsilon: what an answer with noise costs; ``None`` for an answer without noise. See `Query`.
            delta: the probability that such an answer lists a group of one unit.
            analyst: who asks for noise.
            error: how far numbers may be from exact, as a part of them; the cheapest plan that meets it answers.
            confidence: with which probability they are.

        Raises:
            ConfigError: the statement cannot be read, or names what is not there.
            PolicyError: a site does not allow it.
            CompositionError: no strategy can answer it.
        """
        if self._closed:
            raise ConfigError("the connection is closed", where="query", remedy="call atoll.query.connect again")
        said: dict[str, Any] = {"strategy": strategy or self.strategy, "epsilon": epsilon, "delta": delta, "analyst": analyst, "error": error, "confidence": confidence}  # fmt: skip

        def ask(written: str, values: Sequence[Any] | Mapping[str, Any], **more: Any) -> SqlResult:
            return self._run(written, values, **said, **more)

        return cast("SqlResult", self.relations.answer(text, params, ask))

    def _run(self, text: str, params: Sequence[Any] | Mapping[str, Any], **said: Any) -> SqlResult:
        """Run a statement as a job."""
        from atoll.simulation import simulate

        begin, before = time.perf_counter(), {name: silo.seconds for name, silo in self.silos.items()}
        stamps = {name: silo.stamp() for name, silo in self.silos.items()} if said.get("creates") else {}
        job = Query(sql=text, params=params, helper=wants_helper(said["strategy"], len(self.silos)), **said)
        found = simulate(job, self.silos, engine=self.engine, results=self._folder, progress=False).outcome
        total = time.perf_counter() - begin
        local = max((silo.seconds - before[name] for name, silo in self.silos.items()), default=0.0)
        seconds = {"total": total, "local": local, "secure": max(0.0, total - local)}
        statement = None if found.choice is None else found.choice.plan.statement
        if said.get("creates"):
            self._stamps[said["kept"][said["creates"]]] = stamps
        return SqlResult({**found.facts(), "seconds": seconds}, found.answer.rows, statement)

    def cursor(self) -> Cursor:
        """A cursor of PEP 249."""
        return Cursor(self)

    def check(self, result: SqlResult, params: Sequence[Any] | Mapping[str, Any] = ()) -> bool | None:
        """Whether an answer is that of DuckDB over all rows in one place, which only works for silos on this machine.

        Args:
            result: the answer.
            params: the statement's parameters.

        Returns:
            Whether the rows are equal: in any order unless the statement orders them, and doubles to 1e-9 of their size, or 1e-6 beside variances and correlations, of which DuckDB loses digits where values are
            far from 0. Groups and values that were withheld may be anything. ``None`` for an
            answer that is approximate, or only a plan, or one of several that are right, such as a matching; and for one over relations that were kept before rows changed, see `changed_since`.
        """
        inexact = result.approximate is not None or bool(result.privacy and result.privacy["noise_std"])
        if (
            result.explained
            or inexact
            or result.kept
            or result.statement is None
            or "matching" in result.statement.needs
        ):
            return None
        if self.changed_since(result):
            return None
        expected, ordered = self._pool(result.statement.text, params)
        near = 1e-6 if _has_moments(result.statement.tree) else 1e-9
        return _equal_rows(result.rows, expected, ordered, result.withheld_groups, result.withheld_values, near)

    def changed_since(self, result: SqlResult) -> list[str]:
        """The silos whose files have changed since a relation was kept that an answer is about: it is right, and cannot be compared any more."""
        defined = set() if result.statement is None else {one.alias for one in result.statement.tree.find_all(_cte())}
        numbers = [number for name, number in self.relations.ids.items() if name in defined]
        return [name for name, silo in self.silos.items() if any(self._stamps[number][name] != silo.stamp() for number in numbers)]  # fmt: skip

    def try_strategies(
        self, text: str, params: Sequence[Any] | Mapping[str, Any] = (), *, check: bool = False, **noise: Any
    ) -> dict[str, dict[str, Any]]:
        """Answer a statement by each strategy.

        Args:
            text: the statement.
            params: its parameters.
            check: whether to compare with DuckDB over all rows in one place; see `check`.
            noise: ``error`` and ``confidence``, and ``epsilon``, ``delta`` and ``analyst`` of the strategies that take them; see `sql`.

        Returns:
            Name of a strategy -> ``answered``, ``equal`` (``None`` if it is not compared, or approximate), ``refused`` (why, or ``None``), ``seconds`` and ``bytes``.
        """
        found: dict[str, dict[str, Any]] = {}
        wanted = {name: noise.pop(name) for name in ("error", "confidence") if name in noise}
        for name in listed_strategies():
            begin = time.perf_counter()
            row: dict[str, Any] = {"answered": False, "equal": None, "refused": None, "seconds": None, "bytes": None}
            try:
                result = self.sql(text, params, strategy=name, **(noise if takes_epsilon(name) else {}), **wanted)
            except (CompositionError, PolicyError, DataError) as error:
                row["refused"] = str(error)
            else:
                row |= {"answered": True, "seconds": time.perf_counter() - begin, "bytes": result.bytes}
                row["equal"] = self.check(result, params) if check else None
            found[name] = row
        return found

    def _pool(self, text: str, params: Sequence[Any] | Mapping[str, Any]) -> tuple[list[tuple[Any, ...]], bool]:
        """The rows of DuckDB over all rows in one place, and whether the statement orders them."""
        catalog = self.catalog()
        names = {name: silo.name_tables() for name, silo in self.silos.items()}
        statement = parse_statement(text, catalog, params)
        with connect_duckdb() as pooled:
            for table, types in catalog.tables.items():
                columns = ", ".join(f"{quote(column.lower())} {kind}" for column, kind in types.items())
                pooled.execute(f"CREATE TABLE {quote(table)} ({columns})")
                for k, (name, silo) in enumerate(self.silos.items()):
                    if k and silo.policy.table(table).mode == "replicated":
                        continue
                    own = names[name].get(table, "")  # a part of a table whose columns lie apart is not everywhere
                    local = source_text(catalog, silo.policy, table, list(types), own)
                    (rows,) = silo.run_all([f"SELECT * EXCLUDE ({quote(ROW)}) FROM ({local})"], [own], arrow=True)
                    pooled.register("atoll_rows", rows)
                    pooled.execute(f"INSERT INTO {quote(table)} SELECT * FROM atoll_rows")
                    pooled.unregister("atoll_rows")
            for whole, text in statement.calls:
                if whole in catalog.vertical:
                    pooled.execute(f"CREATE VIEW {quote(whole)} AS {text}")
            return pooled.execute(statement.pooled).fetchall(), statement.tree.args.get("order") is not None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the silos."""
        return tuple(self.silos)

    def islands(
        self, text: str, params: Sequence[Any] | Mapping[str, Any] = (), *, target: str, **reads: Any
    ) -> Islands:
        """The rows that a SELECT gives at each silo, as a federated data set: what `atoll.simulate` trains on. No row leaves its silo's island.

        Args:
            text: one SELECT of rows that each silo can make by itself: filters, expressions, and joins within a site.
            params: values of ``?`` in order, or of ``$name`` by name.
            target: the column to predict.
            reads: how columns are read; see `atoll.data.from_dataframes`.

        Raises:
            CompositionError: a row depends on rows of other silos.
            DataError: a silo has no such row.
        """
        from atoll.data import from_dataframes

        catalog, policy = self.catalog(), self.policy()
        statement = parse_statement(text, catalog, params)
        apart = next((call for call, _ in statement.calls if call in catalog.vertical), None)
        if apart is not None:
            raise CompositionError(f"no silo has a whole row of {apart}: its columns lie apart", where="query", remedy="train on the parties' columns as they lie: atoll.vertical")  # fmt: skip
        Scopes(statement.tree, policy).require_rows()
        numbers = ("DECIMAL", "HUGEINT", "UHUGEINT")
        shown = ", ".join(f"CAST({quote(c)} AS DOUBLE) AS {quote(c)}" if kind.startswith(numbers) else quote(c) for c, kind in zip(statement.columns, statement.types, strict=True))  # fmt: skip
        frames = {}
        for name, silo in self.silos.items():
            own = {one.lower(): one for one in silo.read_schema() if one.lower() in catalog.tables}
            tables = [f"{quote(t)} AS ({source_text(catalog, silo.policy, t, list(catalog.tables[t]), own[t])})" for t in own]  # fmt: skip
            local = f"WITH {', '.join(tables)} SELECT {shown} FROM ({statement.sql})"
            (rows,) = silo.run_all([local], list(own.values()), arrow=True)
            frames[name] = rows.to_pandas()
        return from_dataframes(frames, target=target, **reads)

    def catalog(self) -> Catalog:
        """The tables that all silos have, with the types of their columns.

        Raises:
            ConfigError: silos have types that do not fit together.
        """
        schemas = {name: silo.read_schema() for name, silo in self.silos.items()}
        apart = {table for silo in self.silos.values() for table, one in silo.policy.tables.items() if one.whole}
        catalog = unite_schemas(schemas, apart)
        return with_declared(catalog, self._strictest(catalog))

    def policy(self) -> QueryPolicy:
        """What all silos allow: the strictest of their policies."""
        return self._strictest(self.catalog())

    def _strictest(self, catalog: Catalog) -> QueryPolicy:
        tables = {table: [column.lower() for column in columns] for table, columns in catalog.tables.items()}
        apart = {table for silo in self.silos.values() for table, one in silo.policy.tables.items() if one.whole}
        return strictest([silo.policy.told(tables, apart) for silo in self.silos.values()])

    def cancel(self) -> None:
        """Interrupt the statement that runs now, at every silo; it ends with an error, and the silos answer the next one."""
        for silo in self.silos.values():
            silo.cancel()

    def commit(self) -> None:
        """Do nothing: silos are only read."""

    def close(self) -> None:
        """Close all silos, and forget what they have answered, unless a folder keeps it."""
        if not self._closed:
            if self._kept:  # else the folder goes with all that is in it
                _drop_all(self.relations, lambda *asked, **more: self._run(*asked, strategy="auto", **more))
            self._closed = True
            for silo in self.silos.values():
                silo.close()
            if not self._kept:
                shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> SqlConnection:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class JobConnection:
    """SQL over the sites of a project: each statement is a job that they run.

    Args:
        ask: calls an async function with a connection to the project's server, that of a person who signs jobs (`atoll.runtime.admin.Admin`); returns what
            the function returns.
        project: the project's name.
        strategy: how statements are answered.
        helper: whether a helper's site takes part; see `Query`.
    """

    def __init__(
        self, ask: Callable[[Callable[[Any], Awaitable[Any]]], Any], project: str, strategy: str = "auto", helper: bool = False
    ) -> None:  # fmt: skip
        self.strategy, self.helper, self.relations = strategy, helper, KeptRelations()
        self.names = (f"the sites of {project}",)
        self._ask, self._job = ask, ""

    def sql(self, text: str, **noise: Any) -> SqlResult:
        """Answer a statement, as `SqlConnection.sql` does.

        Args:
            text: the statement.
            noise: ``epsilon``, ``delta``, ``analyst``, ``error`` and ``confidence``, as the job takes them.

        Raises:
            AtollError: the job failed, or was stopped.
        """
        return cast("SqlResult", self.relations.answer(text, (), lambda asked, params, **more: self._submit(asked, **noise, **more)))  # fmt: skip

    def _submit(self, text: str, **said: Any) -> SqlResult:
        """Run a statement as a job of the sites."""
        begin = time.perf_counter()
        facts = self._ask(lambda admin: self._run(admin, text, said))
        return SqlResult({**facts, "seconds": {"total": time.perf_counter() - begin, "local": None, "secure": None}})

    def close(self) -> None:
        """Have the sites forget the relations that they keep for this connection."""
        _drop_all(self.relations, lambda text, params, **more: self._submit(text, **more))

    def __enter__(self) -> JobConnection:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def _run(self, admin: Any, text: str, noise: Mapping[str, Any]) -> dict[str, Any]:
        """Submit a job, wait for its end and fetch the answer."""
        with tempfile.TemporaryDirectory(prefix="atoll-sql-") as place:
            job, result = Path(place) / "job.yaml", Path(place) / "result"  # YAML reads JSON
            said = {"name": "sql", "job": "query", "sql": text, "strategy": self.strategy, "helper": self.helper}
            job.write_text(as_json({**said, **noise}))
            submitting = asyncio.ensure_future(admin.submit(job))
            try:
                self._job = (await asyncio.shield(submitting))["job"]
                await admin.finish(self._job)
                await admin.result(self._job, result, files=("query.json",))
            except asyncio.CancelledError:  # Ctrl-C: else the sites would go on for nobody
                await admin.abort((await submitting)["job"])
                raise
            finally:
                self._job = ""
            found: dict[str, Any] = json.loads((result / "query.json").read_bytes())
            return found

    def cancel(self) -> None:
        """End the job of the statement that runs now, once."""
        job, self._job = self._job, ""
        if job:
            self._ask(lambda admin: admin.abort(job))


class Cursor:
    """A cursor as PEP 249 has it; parameters are ``?`` (``qmark``).

    Args:
        connection: where statements run.

    Attributes:
        arraysize: rows that `fetchmany` returns.
        description: name and type of each column of the last statement, and None where PEP 249 has more; ``None`` before one.
        result: the last statement's result.
    """

    arraysize = 1

    def __init__(self, connection: SqlConnection) -> None:
        self.connection = connection
        self.result: SqlResult | None = None
        self._left: list[tuple[Any, ...]] = []

    @property
    def description(self) -> list[tuple[Any, ...]] | None:
        """Name and type of each column; see the class."""
        if self.result is None:
            return None
        return [(name, kind, *[None] * 5) for name, kind in zip(self.result.columns, self.result.types, strict=True)]

    @property
    def rowcount(self) -> int:
        """Number of rows of the last statement; -1 before one."""
        return -1 if self.result is None else len(self.result.rows)

    def execute(self, operation: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> Cursor:
        """Answer a statement; see `SqlConnection.sql`."""
        self.result = self.connection.sql(operation, parameters)
        self._left = list(self.result.rows)
        return self

    def executemany(self, operation: str, parameters: Sequence[Sequence[Any]]) -> Cursor:
        """Answer a statement for each set of parameters; the rows are those of the last."""
        for one in parameters:
            self.execute(operation, one)
        return self

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row, or ``None``."""
        return self._left.pop(0) if self._left else None

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """The next rows."""
        count = self.arraysize if size is None else size
        found, self._left = self._left[:count], self._left[count:]
        return found

    def fetchall(self) -> list[tuple[Any, ...]]:
        """The rows that are left."""
        found, self._left = self._left, []
        return found

    def close(self) -> None:
        """Forget the last statement."""
        self.result, self._left = None, []

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while (row := self.fetchone()) is not None:
            yield row

    def setinputsizes(self, sizes: Any) -> None:
        """Do nothing, as PEP 249 allows."""

    def setoutputsize(self, size: Any, column: Any = None) -> None:
        """Do nothing, as PEP 249 allows."""


def _drop_all(relations: KeptRelations, ask: Callable[..., Any]) -> None:
    """Have all parties forget relations, where they can be asked; what a person does next must not fail for it."""
    try:
        relations.drop_all(ask)
    except (AtollError, OSError) as error:
        warnings.warn(f"{', '.join(relations.ids)} may still be kept at the sites: {error}", RuntimeWarning, stacklevel=level_outside())  # fmt: skip
        relations.forget()


def _cte() -> Any:
    from sqlglot import exp

    return exp.CTE


def _has_moments(tree: Any) -> bool:
    """Whether a statement asks for variances or correlations."""
    from sqlglot import exp

    kinds = (exp.Variance, exp.VariancePop, exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Corr, exp.CovarPop, exp.CovarSamp)  # fmt: skip
    return tree.find(*kinds) is not None


def _equal_rows(found: Sequence[Any], expected: Sequence[Any], ordered: bool, groups: int | None, values: int, near: float) -> bool:  # fmt: skip
    """Whether rows are those expected, up to what was withheld."""
    groups = len(expected) if groups is None else groups
    if len(found) > len(expected) or len(expected) - len(found) > groups:
        return False
    left = list(expected) if ordered else sorted(expected, key=_row_key)
    for row in found if ordered or values else sorted(found, key=_row_key):
        # Without withheld values both are sorted alike, so that the first row that is left is nearly always the one.
        place = next((k for k, other in enumerate(left) if _equal_row(row, other, near, loose=values > 0)), None)
        if place is None or (ordered and place > groups):
            return False
        del left[place]
    return True


def _equal_row(row: Sequence[Any], other: Sequence[Any], near: float, *, loose: bool) -> bool:
    return all((loose and a is None) or _equal_cell(a, b, near) for a, b in zip(row, other, strict=True))


def _equal_cell(a: Any, b: Any, near: float) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=near, abs_tol=1e-12)
    return type(a) is type(b) and bool(a == b)


def _row_key(row: Sequence[Any]) -> list[tuple[bool, str]]:
    # Doubles come last among equals: their last digits may differ.
    exact = [(value is None, "" if isinstance(value, float) else str(value)) for value in row]
    return exact + [(value is None, f"{value:.6g}") for value in row if isinstance(value, float)]


def connect(
    silos: Mapping[str, Any] | None = None,
    policy: Any = None,
    *,
    strategy: str = "auto",
    folder: str | Path | None = None,
) -> SqlConnection:
    """Open SQL over silos on this machine: ``connect(silos={"north": "north/", "south": "south.duckdb"}, policy="p.yaml")``.

    It warns of a folder, file or database that is given under two names: each of its rows counts twice.

    Args:
        silos: name -> a folder of CSV and Parquet files, a file of DuckDB or SQLite, ``postgresql://role@/name``, or a `Silo`.
        policy: what all silos that are not a `Silo` allow: a YAML file, its content, or a `QueryPolicy`; by default all is private.
        strategy: how statements are answered, if a statement does not say.
        folder: keeps the silos' records of what they have answered, and of budgets, for later connections too.

    Raises:
        ConfigError: there is no silo, or the policy cannot be used.
        DataError: a silo cannot be read.
    """
    if not isinstance(silos, Mapping) or not silos:
        raise ConfigError(f"silos={silos!r}", where="connect", remedy='name at least two: silos={"north": "north/", "south": "south.duckdb"}')  # fmt: skip
    allowed = _read_policy(policy)  # once: a pipe gives its content to the first who reads
    made, first = dict[str, Silo](), dict[str, str]()
    with contextlib.ExitStack() as stack:
        for name, given in silos.items():
            if not isinstance(given, Silo):
                place = str(given) if is_postgres(str(given)) else str(Path(given).resolve())
                if first.setdefault(place, str(name)) != str(name):
                    what = f"the silos {first[place]!r} and {str(name)!r} are both {str(given)!r}, and each row counts twice"
                    warnings.warn(what, RuntimeWarning, stacklevel=level_outside())
            made[str(name)] = given if isinstance(given, Silo) else open_silo(given, allowed, str(name))
            stack.callback(made[str(name)].close)
        stack.pop_all()
    return SqlConnection(made, strategy, folder=folder)


def open_silo(path: str | Path, policy: Any = None, name: str = "") -> Silo:
    """A silo over a folder of CSV and Parquet files, a file of DuckDB or SQLite, or a database of PostgreSQL.

    Args:
        path: the folder or file, or ``postgresql://role@/name?host=/var/run/postgresql`` as libpq writes it.
        policy: what the site allows: a `QueryPolicy`, a YAML file, or its content; by default all is private.
        name: what errors call it; by default the name of the file or database.

    Raises:
        DataError: there is no such folder or file, or it is of another kind.
        ConfigError: the policy cannot be used.
    """
    policy = _read_policy(policy)
    if isinstance(path, str) and is_postgres(path):
        limits = policy or QueryPolicy()
        return Silo(PostgresDatabase(path, limits.seconds), limits, name or urlsplit(path).path.strip("/"))
    place = Path(path).resolve()
    return Silo(_source_of(place), policy, name or place.stem)


def _read_policy(given: Any) -> Any:
    """A policy of a file, or of its content; anything else as it is."""
    if isinstance(given, str | Path):
        return QueryPolicy.read(given)
    return QueryPolicy.of(given) if isinstance(given, Mapping) else given


def _source_of(place: Path) -> SiloSource:
    from .databases.files import DuckDBFile, Folder
    from .databases.sqlite import SQLiteFile

    if place.is_dir():
        return Folder(place)
    if not place.is_file():
        raise DataError(f"{str(place)!r}: there is no such folder or file", where="silo", remedy="give a folder of CSV or Parquet files, a file of DuckDB or SQLite, or postgresql://role@/name")  # fmt: skip
    if place.suffix == ".duckdb":
        return DuckDBFile(place)
    if place.suffix in (".sqlite", ".sqlite3", ".db"):
        return SQLiteFile(place)
    if place.suffix in (".csv", ".parquet", ".pq") or place.name.endswith(".csv.gz"):
        return Folder(place)
    raise DataError(f"{str(place)!r} is of no kind that SQL reads", where="silo", remedy="give a folder of CSV or Parquet files, or a file that ends in .duckdb, .sqlite, .csv or .parquet")  # fmt: skip
