"""Silos for tests: tables in memory, the union that is the oracle, and rows that are equal up to the last digits of a double."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from atoll.query import QueryPolicy, Silo, SqlConnection
from atoll.query.databases.silo import SiloSource

__all__ = ["TableSource", "connected", "pooled", "same_rows"]

Table = tuple[Mapping[str, str], Sequence[tuple[Any, ...]]]
"""Types of the columns, and rows."""


class TableSource(SiloSource):
    """Tables in memory as a source of a silo."""

    def __init__(self, tables: Mapping[str, Table]) -> None:
        self.tables = dict(tables)

    def stamp(self, table: str) -> Any:
        return id(self.tables) if not table else id(self.tables[table])

    def read_schema(self) -> dict[str, dict[str, str]]:
        return {name: dict(types) for name, (types, _) in self.tables.items()}

    def connect(self, tables: Sequence[str], memory: int, watch: Any) -> Any:
        del watch
        from atoll.query.databases.silo import connect_duckdb

        made = connect_duckdb(memory=memory, threads=1)
        for name in tables:
            fill_table(made, name, self.tables[name])
        return made


def fill_table(connection: Any, name: str, table: Table) -> None:
    types, rows = table
    connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(f'{c} {kind}' for c, kind in types.items())})")
    if rows:
        connection.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(types))})", rows)


@contextlib.contextmanager
def connected(sources: Mapping[str, Any], policy: Mapping[str, Any] | None) -> Iterator[SqlConnection]:
    """A connection to silos of these sources."""
    made = QueryPolicy() if policy is None else QueryPolicy.of(policy)
    with SqlConnection({name: Silo(source, made, name) for name, source in sources.items()}) as connection:
        yield connection


@contextlib.contextmanager
def pooled(sources: Mapping[str, TableSource], replicated: Sequence[str] = ()) -> Iterator[Any]:
    """DuckDB over the union of all sources."""
    import duckdb

    with duckdb.connect() as made:
        for place, source in enumerate(sources.values()):
            for name, table in source.tables.items():
                if not place or name not in replicated:
                    fill_table(made, name, table)
        yield made


def same_rows(found: Sequence[Any], expected: Sequence[Any], *, ordered: bool = False, what: str = "") -> None:
    """Rows are equal: as a multiset unless they are ordered, and doubles up to 1e-9 of their size."""
    assert len(found) == len(expected), (what, found, expected)
    pairs = zip(found, expected, strict=True) if ordered else zip(sorted(found, key=_key), sorted(expected, key=_key), strict=True)  # fmt: skip
    for one, other in pairs:
        assert len(one) == len(other), what
        for a, b in zip(one, other, strict=True):
            if isinstance(a, float) and isinstance(b, float):
                assert (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-6), (what, one, other)  # fmt: skip
            else:
                assert (type(a), a) == (type(b), b), (what, one, other)


def _key(row: Sequence[Any]) -> list[tuple[bool, str]]:
    return [(value is None, f"{value:.6g}" if isinstance(value, float) else str(value)) for value in row]
