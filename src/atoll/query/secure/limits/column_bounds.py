"""What a plan's bounds refuse, and what a site looks at in its tables for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atoll.core.errors import CompositionError
from atoll.core.exposure import Exposure
from atoll.core.extras import need

from ...databases.silo import quote
from ...statement import SOURCE
from ..extents import Extents
from ..operators import PlanLeaf, SecurePlan, SharedColumn
from .value_bounds import CAPS, count_over, longest_text, text_columns

__all__ = ["largest_number", "limit_columns", "longest_of", "plain_texts", "require_bounds", "tell_bounds"]

Base = tuple[str, str]


def checked_columns(plan: SecurePlan) -> list[SharedColumn]:
    """The columns of all leaves with which parties compute."""
    return [column for leaf in plan.leaves for column in leaf.columns if column.checked]


def _shown(bases: Sequence[tuple[str, str]]) -> str:
    return ", ".join(dict.fromkeys(f"{table}.{column}" for table, column in bases))


def _unbounded(part: str) -> CompositionError:
    return CompositionError(f"nothing bounds the numbers of {part}", where="smcql", remedy=f"say how large they are: CAST({part} AS INTEGER), or as DECIMAL(9,2)")  # fmt: skip


def _leaves_bits(columns: Sequence[SharedColumn]) -> CompositionError:
    texts, bases = (
        dict.fromkeys(one.bound.text or one.text for one in columns),
        [base for one in columns for base in one.bound.unranged],
    )
    what = f"the numbers that follow from {' and '.join(texts) or 'the constants of the statement'} might leave 64 bits"
    scaled = "scale the values down in the statement: SUM(CAST(x / 1000 AS DECIMAL(9,2)))"
    if not bases:
        return CompositionError(what, where="smcql", remedy=scaled)
    return CompositionError(f"{what}, as no range says how large {_shown(bases)} may be", where="smcql", remedy=f"let the policies of all sites write range: [a, b] for {_shown(bases)}, or {scaled}")  # fmt: skip


def limit_columns(plan: SecurePlan, extents: Extents) -> tuple[int, dict[str, int]]:
    """Which of `CAPS` holds, and how large the numbers of each column with which parties compute then are.

    Args:
        plan: the plan.
        extents: of its tables.

    Raises:
        CompositionError: with none of them the numbers of the answer stay in 64 bits, or nothing bounds a column; it names the columns.
    """
    columns = checked_columns(plan)
    lacking = next((one for one in columns if not one.bound.most), None)
    if lacking is not None:
        raise _unbounded(lacking.bound.unknown or lacking.text)
    named = frozenset[str]()
    for place in range(len(CAPS)):
        most = {one.name: one.bound.most[place] for one in columns}
        large = extents.find_large(most)
        if large is None:
            return place, most
        named = large
    raise _leaves_bits([one for one in columns if one.name in named])


def require_bounds(plan: SecurePlan, extents: Extents) -> None:
    """Refuse a statement whose numbers might leave 64 bits, or whose texts might be too long, whatever rows there are; only where few rows must not show.

    Raises:
        CompositionError: names the columns, and the remedy.
    """
    if plan.policy.min_count == 1:
        return
    columns = [column for leaf in plan.leaves for column in leaf.columns]
    for one in columns:
        if one.code.kind == "text" and one.bound.unknown:
            raise CompositionError(f"nothing bounds the length of {one.bound.unknown}, and min_count is {plan.policy.min_count}", where="smcql", remedy=f"shorten it: left({one.bound.unknown}, 100)")  # fmt: skip
    limit_columns(plan, extents)


def largest_number(column: SharedColumn, plan: SecurePlan, extents: Extents, plain: Mapping[Base, int], where: str) -> int:  # fmt: skip
    """How large the numbers of a shared column may be; where few rows must not show, that follows from no row.

    Args:
        column: the column.
        plan: the plan that has it.
        extents: of its tables.
        plain: column of a table -> how many caps it passes; see `plain_texts`.
        where: the site.

    Raises:
        CompositionError: no bound is enough, or a column of a table passes the cap that holds.
    """
    if plan.policy.min_count == 1:
        return extents.largest_of(column.name)
    place, most = limit_columns(plan, extents)
    base = next((one for one in column.bound.capped if plain.get(one, len(CAPS)) >= len(CAPS) - place), None)
    if base is not None:
        raise CompositionError(f"a number of {_shown([base])} is larger than what parties compute with where no range is known", where=where, remedy=f"let the policies of all sites write range: [a, b] for {_shown([base])}")  # fmt: skip
    return most[column.name]


def plain_texts(plan: SecurePlan, leaves: Sequence[PlanLeaf]) -> dict[Base, str]:
    """Columns of tables of which a site tells how long the longest text is, in steps of 8 bytes, or looks how many caps a number passes; with local SQL of it. It is about whole tables, so that no condition chooses rows."""
    found: dict[Base, str] = {}
    for column in (one for leaf in leaves for one in leaf.columns):
        found |= {base: f"SELECT coalesce(8 * ceil(max(strlen({quote(base[1])})) / 8), 0)::BIGINT FROM {quote(SOURCE + base[0])}" for base in text_columns(column.bound.length)}  # fmt: skip
        for table, name in column.bound.capped:
            kind = next(kind for one, kind in plan.catalog.tables[table].items() if one.lower() == name)
            found[table, name] = count_over(quote(SOURCE + table), quote(name), kind, plan.policy.table(table).column(name))  # fmt: skip
    return found


def longest_of(column: SharedColumn, plain: Mapping[Base, int], values: Any) -> int:
    """Bytes of the longest text of a shared column: by `plain_texts`, or of its values, in Arrow, where these may tell."""
    if column.bound.length is not None:
        return longest_text(column.bound.length, plain)
    compute = need("pyarrow.compute", "sql", "shares of text")
    return int(compute.max(compute.binary_length(values)).as_py() or 0)


def tell_bounds(plan: SecurePlan) -> list[Exposure]:
    """What the sizes of texts and numbers give away."""
    columns, made = [column for leaf in plan.leaves for column in leaf.columns], list[Exposure]()
    strict = plan.policy.min_count > 1
    if any(column.code.kind == "text" for column in columns):
        of = "of each column of a table from whose texts one follows that" if strict else "of each column that"
        made.append(Exposure("coordinator, three parties", f"the length of the longest text {of} is shared, in steps of 8 bytes", "", "sizes"))  # fmt: skip
    capped = sorted({_shown([base]) for column in columns if column.checked for base in column.bound.capped})
    if capped:
        made.append(Exposure("coordinator, analyst", f"whether a number of {', '.join(capped)}, of which no range is known, has more than 24 bits, or 40, which may end the statement", "", "sizes"))  # fmt: skip
    if not strict and any(column.number or column.bounded for column in columns):
        made.append(Exposure("coordinator, analyst", "whether a number that follows from the largest ones of a site might leave 64 bits, which ends the statement", "", "sizes"))  # fmt: skip
    return made
