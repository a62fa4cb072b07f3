"""The nearest rows of all sites, up to a factor of the distance."""

from __future__ import annotations

from ..databases.silo import quote
from .registry import Rewriting, RuleCall, rule

__all__ = ["write_approximate"]


@rule("ApproxKNN(point, place, k, error)")
def write_approximate(call: RuleCall) -> Rewriting:
    """Rows of a table of which none is farther from a point than the k-th nearest one by more than a factor of ``1 + error``: ``ApproxKNN(POINT(2.3, 48.8), taxis.place, 5, 0.1)``.

    There are k of them, or all that have a place. All rows that are nearer than the k-th one by the same factor are among them; what lies between is drawn. Distances below the precision of the point count as alike.

    `hufu` looks for the k-th distance among powers of ``1 + error`` in place of all multiples of the precision, so that it takes fewer comparisons, and tells the distance less exactly: the coordinator gets k rows and no
    further one. A strategy that finds the k nearest exactly may answer too.
    """
    from sqlglot import exp

    place = call.arguments[1]
    table = place.table.lower() if isinstance(place, exp.Column) else ""
    if table not in call.tables:
        raise call.refuse(f"{place.sql('duckdb')} names no table", "write the table before the point: taxis.place", 1)
    alias = call.alias or place.table
    rest = ", ".join(one.sql("duckdb") for one in call.arguments[2:])
    near = f"kNN({call.arguments[0].sql('duckdb')}, {quote(alias)}.{place.name}, {rest})"
    return Rewriting(f"{quote(table)} AS {quote(alias)}", near)
