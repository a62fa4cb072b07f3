"""A statement's answer on gates in the clear: what circuits of owners compute, without a protocol and without sessions."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from atoll.query import SqlConnection
from atoll.query.local import message_of
from atoll.query.secure.costs import measure_extents
from atoll.query.secure.owner_rows import measure_bits, read_wires, release_wires, share_leaves
from atoll.query.statement import parse_statement
from atoll.query.strategies.smcql import LocalRows, Smcql, read_answer
from tests.support.plain_gates import PlainGates

__all__ = ["answer_in_clear"]


def answer_in_clear(db: SqlConnection, text: str, checking: Any = None) -> tuple[list[Any], PlainGates]:
    """The rows of a statement, and the gates; ``checking`` makes what is checked of each owner's rows, as `count_gates` has it."""
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
                for column, count in measure_bits(leaf, own(owner, place)[1]).items():
                    bits[column] = max(count, bits.get(column, 8))
    checks = None if checking is None else checking(gates, plan, sizes)

    async def work() -> Any:
        return await release_wires(plan, gates, await share_leaves(gates, plan, sizes, widths, bits, own, checks))

    found = [read_wires(plan, x.data[0].astype(bool), layout) for x, layout in asyncio.run(work())]
    return read_answer(plan, *found)[0], gates
