"""What one party adds to secure sums: whole numbers alone, so that sums modulo ``2^64`` are exact; and the columns that all parties agree on first.

Counts are whole numbers. A sum of real numbers ``v`` with ``|v| <= 1`` becomes ``round(2^bits sum v)``, with as many bits as the sum of all parties has room for
(`resolution`): it errs by at most ``2^-(bits + 1)`` a party, below ``1e-11`` for a billion rows.

With a minimum count, everything about order (leading bits, ranks, bins) is that of coarse values (`atoll.statistics.disclosure`). No range of the values is
told then. A party takes values beyond ``2^8`` times the power of two that enough of them reach as that number, a bound of its own that no message moves: a sum in which the
server chooses where values are cut would count the values above the cut.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import DataError, PolicyError
from atoll.core.requests.disclosure import Disclosure
from atoll.core.requests.task import task

from .answered import AnswerRecord
from .columns import TableColumn, settle_kind, table_of
from .described import remember, tell_products
from .disclosure import coarsen, reach
from .histogram import counts_in
from .moments import Relations
from .plan import Cell, StatisticsPlan, agreed_parts
from .sketch import keys_of, refine_counts

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

    from .job import Statistics

__all__ = [
    "AgreedColumns",
    "LOWEST",
    "MARGIN",
    "STEP",
    "agreed_columns",
    "central_sums",
    "first_sums",
    "named",
    "next_sums",
    "resolution",
    "surveyed",
]

STEP = 12
"""Bits of a key that a round counts."""

LOWEST = -1100
"""The exponent of the first place in the counts of parties by `reach`."""

MARGIN = 2.0**8
"""How far beyond the power of two that enough values reach a value counts as it is."""

Sums = dict[str, Sum]
_MOST = 60


def resolution(rows: int, parties: int) -> int:
    """Bits of the fraction of a fixed-point sum of so many numbers of at most 1 at so many parties."""
    return _MOST - max(1, rows).bit_length() - max(1, parties).bit_length()


def _read_promise(message: Any) -> Disclosure:
    return Disclosure(int(message["plan"]["min_count"]))


def _read_request(island: Any, message: Any) -> tuple[StatisticsPlan, int, dict[str, TableColumn], list[Cell], AnswerRecord]:  # fmt: skip
    """The plan, the rows, the agreed columns and the agreed cells of a party, and its record, which is kept.

    Raises:
        DataError: a column is of another kind here.
        PolicyError: the rows differ from answered ones by too few.
    """
    plan, table, columns, cells = agreed_parts(island, message)
    record = remember(island, plan, table, [cell for cell in cells if cell.size(len(table))])
    record.keep(island)
    return plan, len(table), columns, cells, record


def _numbers(columns: Mapping[str, TableColumn]) -> list[TableColumn]:
    return [column for column in columns.values() if column.kind == "number"]


def _whole(values: Any) -> Sum:
    return Sum(np.asarray(values, dtype=np.int64), role="side")


@task
def named(island: Any, message: Any) -> Any:
    """The kinds of one party's columns, and nothing of its rows."""
    plan = StatisticsPlan.unpack(message["plan"])
    return {name: column.told_kind(plan.min_count) for name, column in plan.columns_of(table_of(island.data)).items()}


@task(discloses=_read_promise)
def surveyed(island: Any, message: Any) -> Sums:
    """Rows, values and missing values of each cell, the first bits of the values' keys, and counts of the agreed categories."""
    plan, of, columns, cells, record = _read_request(island, message)
    numbers = _numbers(columns)
    counts = np.zeros((2, len(cells), len(numbers)), np.int64)
    tops = np.zeros((len(cells), len(numbers), 1 << STEP), np.int64)
    far = np.zeros((len(cells), len(numbers), 1024 - LOWEST + 1), np.int64)
    for k, cell in enumerate(cells):
        for j, column in enumerate(numbers):
            values = column.numbers(cell.rows)
            there = values[np.isfinite(values)] if values.dtype.kind == "f" else values
            counts[:, k, j] = len(there), len(values) - len(there)
            coarse = coarsen(there, plan.min_count * column.per_row) if plan.min_count > 1 else there
            tops[k, j] = np.bincount((keys_of(coarse) >> (64 - STEP)) + (1 << (STEP - 1)), minlength=1 << STEP)
            far[k, j, _exponent(there.astype(np.float64), plan.min_count * column.per_row) - LOWEST] = 1
    found = {"rows": _whole([cell.size(of) for cell in cells]), "counts": _whole(counts), "tops": _whole(tops)}
    if plan.min_count > 1:
        found["reach"] = _whole(far)
    for name, column in columns.items():
        if column.kind != "number":
            found[f"values {name}"] = _whole([_count_agreed(column, cell, plan, of) for cell in cells])
    if message.get("correlations"):
        related = _list_related(columns, cells[0], plan)
        found["single"] = _whole([column.single for column in numbers])
        every = np.ones((len(related), len(related)), bool)
        found["objections"] = _whole(~tell_products(record, plan, cells[0], related, every, of))
    return found


def _list_related(columns: Mapping[str, TableColumn], cell: Cell, plan: StatisticsPlan) -> dict[str, NDArray[np.float64]]:  # fmt: skip
    """The values of the columns that may correlate."""
    return {column.name: _clip_values(column, cell, plan.min_count) for column in _numbers(columns) if column.single}


def _count_agreed(column: TableColumn, cell: Cell, plan: StatisticsPlan, of: int) -> list[int]:
    """Counts of the agreed values, of rows with any value, and of rows with none; of values that are nearly all different, none are counted."""
    counts, present, missing = column.counted(cell.rows, of)
    place = {name: k for k, name in enumerate(column.coded[0])} if column.listable else {}
    agreed = plan.categories.get(column.name, ())
    return [*(int(counts[place[name]]) if name in place else 0 for name in map(str, agreed)), present, missing]


@task(discloses=_read_promise)
def next_sums(island: Any, message: Any) -> Sums:
    """How many values have which next bits, for each target: place of a cell, column, and the known bits."""
    plan, _, columns, cells, _ = _read_request(island, message)
    known, bits = int(message["known"]), int(message["bits"])
    values = {(k, name): _order_values(columns[name], cells[k], plan) for k, name, _ in message["targets"]}
    rows = [refine_counts(values[k, name], int(prefix), known, bits) for k, name, prefix in message["targets"]]
    return {"counts": _whole(np.array(rows, dtype=np.int64).reshape(-1, 1 << bits))}


def _order_values(column: TableColumn, cell: Cell, plan: StatisticsPlan) -> NDArray[Any]:
    """The values of a cell as ranks and bins see them."""
    values = column.numbers(cell.rows)
    return coarsen(values, plan.min_count * column.per_row) if plan.min_count > 1 else values


@task(discloses=_read_promise)
def first_sums(island: Any, message: Any) -> Sums:
    """Sums of ``(x - centre) / scale`` of each cell and column, in fixed point."""
    _, _, columns, cells, _ = _read_request(island, message)
    found = np.zeros((len(cells), len(message["centres"][0]) if len(cells) else 0), np.int64)
    for k, cell in enumerate(cells):
        for j, column in enumerate(_numbers(columns)):
            v = _scale_values(column, cell, message, k, j)
            found[k, j] = _to_fixed_point(v.sum(), message["bits"])
    return {"sums": _whole(found)}


@task(discloses=_read_promise)
def central_sums(island: Any, message: Any) -> Sums:
    """Sums of squares and cubes around the common means, histograms over common bins, and sums for the correlations of the pairs that no party objects to.

    Raises:
        PolicyError: it objects to a pair.
    """
    plan, of, columns, cells, record = _read_request(island, message)
    numbers, bits = _numbers(columns), message["bits"]
    found = np.zeros((2, len(cells), len(numbers)), np.int64)
    edges = {name: np.asarray(row) for name, row in message["edges"].items()}
    made: Sums = {}
    for k, cell in enumerate(cells):
        for j, column in enumerate(numbers):
            v = _scale_values(column, cell, message, k, j)
            found[:, k, j] = _to_fixed_point((v * v).sum(), bits), _to_fixed_point((v * v * v).sum(), bits)
    made["powers"] = _whole(found)
    for name, row in edges.items():
        made[f"bins {name}"] = _whole([counts_in(_order_values(columns[name], cell, plan), row) for cell in cells])
    pairs = np.asarray(message["pairs"], bool)
    if pairs.size:
        single = [j for j, column in enumerate(numbers) if column.single]
        values = _list_related(columns, cells[0], plan)
        if not np.array_equal(tell_products(record, plan, cells[0], values, pairs, of), pairs):
            raise PolicyError(
                f"sums of products of {', '.join(values)} and earlier answers together show fewer than min_count={plan.min_count} rows",
                where=island.name,
                remedy="leave out correlations, or columns that are nearly the same in all rows",
            )
        record.keep(island)
        centres, scales = ([float(message[name][0][j]) for j in single] for name in ("centres", "scales"))
        related = Relations.of(list(values.values()), centres, scales).keeping(pairs)
        made["both"] = _whole(related.both)
        for name in ("sums", "squares", "products"):
            made[f"related {name}"] = _whole(_to_fixed_point(getattr(related, name), bits))
    return made


def _scale_values(column: TableColumn, cell: Cell, message: Any, k: int, j: int) -> NDArray[np.float64]:
    values = _clip_values(column, cell, int(message["plan"]["min_count"]))
    return (values[np.isfinite(values)] - float(message["centres"][k][j])) / float(message["scales"][k][j])


def _clip_values(column: TableColumn, cell: Cell, least: int) -> NDArray[np.float64]:
    """The values of a cell as moments see them: with a minimum count, none beyond the party's own bound."""
    values = column.numbers(cell.rows).astype(np.float64)
    if least <= 1:
        return values
    exponent = _exponent(values[np.isfinite(values)], least * column.per_row)
    most = float(np.ldexp(MARGIN, min(exponent, 1000)))
    return np.where(np.isfinite(values), np.clip(values, -most, most), np.nan)


def _exponent(values: NDArray[np.float64], least: int) -> int:
    """The power of two that enough values reach; of fewer values, 2 to the next multiple of 16 above all of them."""
    found = reach(values, least)
    if found is not None:
        return max(found, LOWEST)
    most = float(np.abs(values).max(initial=0.0))
    return min(1024, 16 * math.ceil(math.frexp(most)[1] / 16)) if most else LOWEST


def _to_fixed_point(values: Any, bits: int) -> NDArray[np.int64]:
    return np.rint(np.asarray(values, dtype=np.float64) * 2.0 ** int(bits)).astype(np.int64)


# ---------------------------------------------------------------- the columns that all parties have


@dataclass(frozen=True)
class AgreedColumns:
    """What all parties describe.

    Attributes:
        kinds: column -> kind, in order.
        keys: family and label of each cell, in order.
    """

    kinds: Mapping[str, str]
    keys: tuple[tuple[str, str], ...]

    @property
    def numbers(self) -> list[str]:
        """The columns of numbers, in order."""
        return [name for name, kind in self.kinds.items() if kind == "number"]

    def list_untold(self, plan: StatisticsPlan) -> list[str]:
        """What is not told because its values are not agreed, in words."""
        rows = [name for name, kind in self.kinds.items() if kind != "number" and name not in plan.categories]
        return [f"values of {name}: they are not agreed; give categories={{{name!r}: [...]}}" for name in rows]


async def agreed_columns(fed: Federation, job: Statistics, kinds: Mapping[str, str]) -> AgreedColumns:
    """The columns: those of the settings, or those that the parties name.

    Args:
        fed: the federation.
        job: the settings.
        kinds: what a checkpoint knows of them; empty at first.

    Raises:
        DataError: the parties have different columns.
    """
    plan = job.plan
    found: dict[str, str] = dict(kinds) or _describe_kinds(job)
    if not found:
        told = await fed.ask_all(fed.parties, named, {"plan": plan.pack()})
        sites = dict(zip(told.senders.names, map(dict, told.values), strict=True))
        first = next(iter(sites.values()), {})
        found = {name: settle_kind(one.get(name, "") for one in sites.values()) or "" for name in first}
        for site, one in sites.items():
            if one.keys() != first.keys():
                _refuse(site, one, told.senders.names[0], first)
        for name in [name for name, kind in found.items() if not kind]:
            sure = {one[name]: site for site, one in reversed(sites.items()) if not one[name].endswith("?")}
            here, there, *_ = sure.values()
            _refuse(there, sites[there], here, sites[here])
    families = [*plan.by, *([plan.over] if plan.over else ())]
    groups = tuple((family, str(label)) for family in families for label in plan.categories[family])
    return AgreedColumns(found, (("", ""), *groups))


def _refuse(site: str, kinds: Mapping[str, str], other: str, theirs: Mapping[str, str]) -> None:
    raise DataError(
        f"the columns of {site} are {_format_kinds(kinds)}, and of {other} {_format_kinds(theirs)}",
        where="statistics",
        remedy="name columns= that all parties have, of one kind",
    )


def _describe_kinds(job: Statistics) -> dict[str, str]:
    """The kinds of the columns that the settings name; they follow from the settings."""
    found: dict[str, str] = {}
    for name in job.columns:
        if name in job.text:
            found |= {f"{name}/characters": "number", f"{name}/words": "number", f"{name}/vocabulary": "words"}
        else:
            found[name] = "category" if name in job.categories else "number"
    return found


def _format_kinds(kinds: Any) -> str:
    return ", ".join(f"{name} ({kind.replace('?', ', empty')})" for name, kind in kinds.items())
