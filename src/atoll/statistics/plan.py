"""What a party is asked to describe, as a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from atoll.core.errors import DataError
from atoll.data.table import DataTable

from .cells import Cell, cells_of
from .columns import TableColumn, columns_of, table_of

__all__ = ["StatisticsPlan", "agreed_parts"]


@dataclass(frozen=True)
class StatisticsPlan:
    """The part of the settings that parties must know.

    Attributes:
        request: what people know the request by.
        columns: columns, in order; by default all of each party.
        text: columns of free text.
        categories: the values of a column, in order, where they are agreed.
        by: columns whose values are groups.
        over: a column of moments.
        period: how long a period is.
        where: conditions that every row meets.
        digits: bits of the fraction in sketches of quantiles; 0 for no sketch.
        words: how many words of a vocabulary are told.
        extremes: whether the smallest and the largest value are told.
        min_count: with fewer rows a cell is withheld.
    """

    request: str = "statistics"
    columns: Sequence[str] = ()
    text: Sequence[str] = ()
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)
    by: Sequence[str] = ()
    over: str = ""
    period: str = "month"
    where: Sequence[Any] = ()
    digits: int = 0
    words: int = 100
    extremes: bool = True
    min_count: int = 1

    def packed(self) -> dict[str, Any]:
        """The plan as a message."""
        made = asdict(self)
        lists = {name: [*made[name]] for name in ("columns", "text", "by")}
        where = [[one[0], one[1], [*one[2]] if isinstance(one[2], list | tuple) else one[2]] for one in self.where]
        return {
            **made,
            **lists,
            "where": where,
            "categories": {name: [*map(str, v)] for name, v in self.categories.items()},
        }

    @classmethod
    def unpacked(cls, message: Any) -> StatisticsPlan:
        """The inverse of `packed`."""
        return cls(**message)

    @property
    def families(self) -> tuple[str, ...]:
        """The columns that divide the rows into groups and periods."""
        return (*self.by, *([self.over] if self.over else ()))

    @property
    def base(self) -> str:
        """The rows that are described, in words."""
        conditions = " and ".join(f"{column} {sign} {value}" for column, sign, value in self.where)
        return f"the rows where {conditions}" if conditions else "all rows"

    def columns_of(self, table: DataTable) -> dict[str, TableColumn]:
        """The columns of a table that the plan describes; by default all but those that only divide it."""
        wanted = self.columns or [name for name in table.columns if name not in self.by and name != self.over]
        return columns_of(table, wanted, self.text, self.categories)

    def cells_of(self, table: DataTable, agreed: Mapping[str, Sequence[str]] | None = None) -> list[Cell]:
        """The cells of a table."""
        return cells_of(table, self.by, self.over, self.period, self.where, agreed)


def agreed_parts(island: Any, message: Any) -> tuple[StatisticsPlan, DataTable, dict[str, TableColumn], list[Cell]]:
    """The plan of a message, and a party's table, agreed columns and agreed cells.

    Raises:
        DataError: a column is of another kind here.
    """
    plan, table = StatisticsPlan.unpacked(message["plan"]), table_of(island.data)
    columns, cells = plan.columns_of(table), plan.cells_of(table, plan.categories)
    columns = {name: column.as_kind(message["kinds"].get(name, column.kind)) for name, column in columns.items()}
    kinds = {name: column.kind for name, column in columns.items()}
    if kinds != dict(message["kinds"]):
        raise DataError(
            f"the columns are {kinds}, and the other parties' are {dict(message['kinds'])}",
            where=island.name,
            remedy="name columns= that all parties have, of one kind",
        )
    return plan, table, columns, cells
