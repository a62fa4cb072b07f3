"""A statement's answer on gates in the clear: what circuits of owners compute, without a protocol and without sessions."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from atoll.query import SqlConnection
from atoll.query.circuits.owner_rows import measure_bits, read_wires, release_wires, share_leaves, shown_names
from atoll.query.circuits.subplans import Division, PartRunner, PlanPart, divide_plan, measure_parts
from atoll.query.circuits.wires import WireTables
from atoll.query.local import message_of
from atoll.query.secure.costs import measure_extents
from atoll.query.statement import parse_statement
from atoll.query.strategies.shared_rows import LocalRows
from atoll.query.strategies.smcql import Smcql, read_answer
from tests.support.plain_gates import PlainGates

__all__ = ["PlainParts", "answer_in_clear"]


class PlainParts:
    """The same gates for each part of a plan; a result passes on as it is."""

    def __init__(self, gates: PlainGates) -> None:
        self.gates, self.met = gates, list[PlanPart]()

    def takes_part(self, part: PlanPart) -> bool:
        return True

    def open(self, part: PlanPart) -> Any:
        self.met.append(part)
        return nullcontext(self.gates)

    async def lend(self, gates: Any, part: PlanPart, x: Any) -> Any:
        return x

    async def borrow(self, gates: Any, part: PlanPart, lent: Any, shape: tuple[int, int]) -> Any:
        assert lent.shape == shape
        return lent


def answer_in_clear(db: SqlConnection, text: str, checking: Any = None, division: Division | None = None, met: list[Any] | None = None) -> tuple[list[Any], PlainGates]:  # fmt: skip
    """The rows of a statement, and the gates.

    Args:
        db: the sites.
        text: the statement.
        checking: makes what is checked of each owner's rows, of gates, plan and sizes.
        division: which parts fewer owners compute; ``None`` for none.
        met: where the parts are noted.
    """
    catalog, policy = db.catalog(), db.policy()
    statement = parse_statement(text, catalog, ())
    plan = Smcql().plan(statement, catalog, policy)
    message = message_of(statement, catalog, policy, db.names[0], Smcql())
    kept = {name: LocalRows(SimpleNamespace(data=silo, name=name), message, plan) for name, silo in db.silos.items()}
    sizes = {name: one.sizes for name, one in kept.items()}
    widths: dict[str, int] = {}
    for number, one in enumerate(kept.values()):
        one.number = number
        for column, count in one.widths().items():
            widths[column] = max(count, widths.get(column, 1))
    extents, gates = measure_extents(plan, sizes), PlainGates()

    def own(owner: str, place: int) -> Any:
        return kept[owner].rows[place].num_rows, kept[owner].encode(place, widths, extents)

    bits: dict[str, int] = {}
    for owner, one in kept.items():
        for place, leaf in enumerate(one.leaves):
            if leaf is not None:
                for column, count in measure_bits(leaf, own(owner, place)[1], strict=policy.min_count > 1).items():
                    bits[column] = max(count, bits.get(column, 8))
    checks = None if checking is None else checking(gates, plan, sizes)

    if division is not None:
        held = {name: [size if count else 0 for size, count in zip(one.sizes, one.counts, strict=True)] for name, one in kept.items()}  # fmt: skip
        return _answer_divided(plan, (held, widths, bits), own, gates, checking, division, met), gates

    async def work() -> Any:
        leaves = await share_leaves(gates, plan, sizes, widths, bits, own, checks)
        return await release_wires(plan, WireTables(gates, leaves, shown_names(plan)))

    found = [read_wires(plan, x.data[0].astype(bool), layout) for x, layout in asyncio.run(work())]
    return read_answer(plan, *found)[0], gates


def _answer_divided(plan: Any, terms: Any, own: Any, gates: PlainGates, checking: Any, division: Division, met: list[Any] | None) -> list[Any]:  # fmt: skip
    whole, parts = divide_plan(plan, terms[0], division), PlainParts(gates)

    def checks(by: Any) -> Any:
        return checking(by, plan, terms[0])

    _, layouts = measure_parts(plan, whole, *terms, 64, checks)
    told = asyncio.run(PartRunner(plan, *terms, own, parts, checks, layouts).run(whole))
    if met is not None:
        met += parts.met
    return read_answer(plan, *(read_wires(plan, x.reshape(-1, rows).astype(bool), layout) for x, layout, rows in told))[0]  # fmt: skip
