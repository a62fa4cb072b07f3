"""Groups of two owners' rows: those of a loop over all rows, withheld where they are few, and refused where they do not fit."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import ConfigError, DataError
from atoll.core.requests.island import Secret
from atoll.secure.garbled import GateCounter, OwnerColumn, begin_garbling, garbling_contract, merge_sorted_groups
from tests.support.plain_gates import PlainGates
from tests.support.transfer_toys import talk

OWNERS = ("north", "south")
COLUMNS = {"cost": OwnerColumn("sum", "cost", 30), "least": OwnerColumn("min", "cost", 12), "most": OwnerColumn("max", "cost", 12)}  # fmt: skip
PLAN = {"owners": OWNERS, "key": "ward", "key_bits": 5, "columns": COLUMNS}


def table(seed, rows):
    rng = np.random.default_rng(seed)
    return {"ward": rng.integers(0, 12, rows), "cost": rng.integers(-500, 500, rows)}


def by_loop(tables, least):
    groups = defaultdict(list)
    for one in tables:
        for ward, cost in zip(one["ward"].tolist(), one["cost"].tolist(), strict=True):
            groups[ward].append(cost)
    kept = {ward: costs for ward, costs in sorted(groups.items()) if len(costs) >= least}
    return [(ward, len(costs), sum(costs), min(costs), max(costs)) for ward, costs in kept.items()], len(groups) - len(kept)  # fmt: skip


def rows_of(found):
    columns = [found.keys, found.counts, *(found.columns[name] for name in COLUMNS)]
    return list(zip(*(one.tolist() for one in columns), strict=True)), found.withheld


class Both(PlainGates):
    """Gates in the clear that stand for both owners in turn."""

    def __init__(self, tables, capacity):
        super().__init__()
        self.tables, self.capacity, self.queues = tables, capacity, {}

    async def run(self, **plan):
        from atoll.secure.garbled import groups

        self.queues = {me: groups._group_own(self.tables[me], "ward", 5, COLUMNS, self.capacity[me]) for me in OWNERS}
        return await merge_sorted_groups(self, None, capacity=self.capacity, **PLAN, **plan)

    async def share(self, values=None, *, owner="", bits, rows=0):
        return await super().share(self.queues[owner].pop(0), bits=bits)


@settings(max_examples=25)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 6), st.integers(0, 2**32))
def test_groups_are_those_of_a_loop(first, second, least, seed):
    tables = {me: table(seed + i, n) for i, (me, n) in enumerate(zip(OWNERS, (first, second), strict=True))}
    found = asyncio.run(Both(tables, {"north": 12, "south": 15}).run(min_count=least))
    assert rows_of(found) == by_loop(tables.values(), least)


def garbled(tables, change=None, **plan):
    def side(me):
        async def play(line):
            async with await begin_garbling(Secret(me == "south"), line, me, garbler="north", evaluator="south") as gates:  # fmt: skip
                return await merge_sorted_groups(gates, tables[me], **PLAN, **plan)

        return play

    return talk(side("north"), side("south"), OWNERS, change)


def test_owners_see_the_groups_and_their_messages_depend_on_the_capacity_alone():
    capacity, sizes = {"north": 12, "south": 12}, []
    counted = asyncio.run(GateCounter.measure(lambda gates: merge_sorted_groups(gates, None, capacity=capacity, min_count=4, to="south", **PLAN), OWNERS))  # fmt: skip
    contract = garbling_contract(counted)
    for rows in (30, 3):
        tables = {me: table(i, rows) for i, me in enumerate(OWNERS)}
        one, two, heard = garbled(tables, capacity=capacity, min_count=4, to="south")
        assert one is None
        assert rows_of(two) == by_loop(tables.values(), 4)
        sizes.append(sorted((me, channel, np.asarray(told).nbytes) for me, channel, told in heard))
        told = [(me, OWNERS[me == "north"], channel, message) for me, channel, message in heard]
        assert contract.compare_recorded(told) == []
    assert sizes[0] == sizes[1]
    assert [one.who for one in contract.learns if one.kind == "sum"] == ["south"]


def test_what_does_not_fit_is_refused_in_words():
    good = table(0, 5)
    for rows, words in (
        ({"ward": good["ward"]}, r"no column 'cost'.*\['ward'\]"),
        (good | {"ward": good["ward"] + 30}, "a key that does not fit 5 bits"),
        (good | {"ward": good["ward"] - 30}, "a key that does not fit 5 bits"),
        (good | {"cost": good["cost"] / 2}, "column 'cost' of type float64"),
        (good | {"cost": good["cost"][:2]}, "2 values in column 'cost' and 5 keys"),
        (good | {"cost": np.full(5, 2**64 - 1, dtype=np.uint64)}, "a number of 64 bits in column 'cost'"),
        (good | {"cost": np.full(5, 1 << 27)}, "does not fit the 30 bits of 'cost'"),
        ({"ward": np.arange(13), "cost": np.zeros(13, dtype=int)}, "13 groups at this party.*which is 12"),
    ):
        with pytest.raises(DataError, match=words):
            garbled({"north": rows, "south": good}, capacity={"north": 12, "south": 12})
    for wrong, words in (
        ({"owners": ["a"]}, "name two owners"),
        ({"key_bits": 64}, "key_bits=64"),
        ({"min_count": 0}, "min_count=0"),
        ({"columns": {"x": OwnerColumn("mean", "x", 8)}}, "column 'x' is"),
    ):
        with pytest.raises(ConfigError, match=words):
            asyncio.run(merge_sorted_groups(GateCounter(OWNERS), None, **{**PLAN, "capacity": dict.fromkeys(OWNERS, 3), **wrong}))  # fmt: skip
