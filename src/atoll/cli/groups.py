"""Groups of runs as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.markup import escape

from atoll.report.groups import shown_difference, shown_mean, told_notices

from .output import PlainTable

if TYPE_CHECKING:
    from atoll.report.groups import Difference

__all__ = ["table_of"]


def table_of(rows: Sequence[dict[str, Any]], found: Sequence[Difference]) -> Group:
    """The variants as a table, and below it what their results say of themselves."""
    against = {one.group: shown_difference(one) for one in found}
    table = PlainTable(header_style="bold")
    table.add_column("variant")
    for name in (f"{rows[0]['metric']}, mean ± sd", "runs"):
        table.add_column(name, justify="right")
    if found:
        table.add_column(f"difference from {rows[0]['group']} (95 % interval)")
    for row in rows:
        runs = f"{row['finished']}" + (f" ({len(row['failed'])} failed)" if row["failed"] else "")
        table.add_row(
            str(row["group"]), shown_mean(row), runs, *([against.get(str(row["group"]), "")] if found else [])
        )
    return Group(table, *map(escape, told_notices(rows)))
