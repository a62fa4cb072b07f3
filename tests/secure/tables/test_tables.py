"""Operators over shared tables give what pandas gives on the rows themselves, and what they send depends on public sizes alone."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.errors import ConfigError, DataError, LetterError
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.secure.shares import ReplicatedComputation, ReplicatedSharing, WordRing, less_words
from atoll.secure.tables import (
    RowAggregate,
    SortKey,
    WindowAggregate,
    collect_table,
    compact_rows,
    concatenate_tables,
    deliver_table,
    distinct_rows,
    find_repeated_keys,
    group_rows,
    join_many,
    join_unique,
    mark_firsts,
    open_table,
    semi_join,
    send_table,
    share_table,
    sort_table,
    total_rows,
    window_columns,
    window_rows,
)
from atoll.secure.tables import sorting as sorting_module
from tests.support.trios import Recorder, among_three, seen_bytes

LAYOUT = {"key": 7, "missing": 1, "x": 16, "y": None, "flag": 1}


def rows_of(rng, n, keys=5):
    return {
        "key": rng.integers(0, keys, n), "missing": rng.integers(0, 4, n) == 0, "x": rng.choice([0, 7, 7, 65535], n),
        "y": rng.integers(-(2**40), 2**40, n), "flag": rng.integers(0, 2, n),
    }  # fmt: skip


def frame_of(rows):
    frame = pd.DataFrame(rows)
    frame["key"] = frame["key"].astype("Int64").mask(frame["missing"].astype(bool))
    return frame


def as_rows(columns):
    """Columns as a multiset of rows."""
    return sorted(zip(*(np.asarray(columns[name]).tolist() for name in sorted(columns)), strict=True))


async def shared(trio, values):
    """Two owners' rows, filled up, as one table."""
    tables = [
        await share_table(
            trio, f"p{i}", layout=LAYOUT, capacity=capacity, rows=rows if trio.numbers.me == f"p{i}" else None
        )
        for i, (rows, capacity) in enumerate(values)
    ]
    return concatenate_tables(tables)


def key_of(table):
    return SortKey(table.words("key"), null=table.words("missing"))


AGGREGATES = {
    "n": RowAggregate("count"), "flags": RowAggregate("count", where="flag"), "total": RowAggregate("sum", "y"),
    "words": RowAggregate("sum", "x", where="flag"), "least": RowAggregate("min", "x", where="flag"), "most": RowAggregate("max", "x"),
}  # fmt: skip


RUNNING = {
    "number": RowAggregate("count"),
    "sum": RowAggregate("sum", "y"),
    "peak": RowAggregate("max", "x", where="flag"),
}

WINDOWS = {
    "rank": WindowAggregate("rank"), "dense": WindowAggregate("dense_rank"), "whole": WindowAggregate("sum", "y"), "peers": WindowAggregate("sum", "y", frame="peers"),
    "least": WindowAggregate("min", "x", "flag"), "most": WindowAggregate("max", "x", frame="peers"), "above": WindowAggregate("lag", "x", offset=2), "below": WindowAggregate("lag", "x", offset=-1),
}  # fmt: skip


@among_three
async def queries(trio, values):
    table = await shared(trio, values)
    few = await table.filter_rows(await less_words(table.words("x"), trio.constant(np.full(len(table), 100), 16)))
    keys = [key_of(few), SortKey(few.words("x"), descending=True)]
    return {
        "all": await open_table(table),
        "few": await open_table(few.keep_columns(["x", "y"])),
        "groups": await open_table(await group_rows(table, [key_of(table)], AGGREGATES, keep=["key", "missing"])),
        "distinct": await open_table(await distinct_rows(table, ["key", "x"])),
        "total": await open_table(await total_rows(few, AGGREGATES)),
        "window": await open_table(
            await window_rows(few, [key_of(few)], [SortKey(few.words("x"), descending=True)], RUNNING)
        ),
        "windows": await open_table(await window_columns(few, [key_of(few)], [SortKey(few.words("x"))], WINDOWS)),
        "firsts": await open_table(
            few.with_columns(
                {"first": await mark_firsts(few, [key_of(few)], [SortKey(few.words("x"))], where=few.words("flag"))}
            )
        ),
        "top": await open_table(await sort_table(few, keys, limit=3), ordered=True),
    }


def grouped(frame, where):
    flagged = frame[frame["flag"] == 1]
    both, some = (part.groupby(where, dropna=False) for part in (frame, flagged))
    found = pd.DataFrame({"n": both.size(), "total": both["y"].sum(), "most": both["x"].max()})
    more = pd.DataFrame({"flags": some.size(), "words": some["x"].sum(), "least": some["x"].min()})
    return found.join(more).fillna({"flags": 0, "words": 0, "least": 65535}).astype(np.int64).reset_index()


def running(frame):
    """Row numbers, sums and peaks over the rows of a key so far, the largest x first."""
    blank = frame["key"].where(frame["missing"] == 0, -1)
    ordered = frame.assign(down=-frame["x"], flagged=frame["x"].where(frame["flag"] == 1, 0))
    ordered = ordered.sort_values("down", kind="stable")
    groups = ordered.groupby(blank)
    made = {"number": groups.cumcount() + 1, "sum": groups["y"].cumsum(), "peak": groups["flagged"].cummax()}
    return ordered.assign(**made).drop(columns=["down", "flagged"])


def windowed(frame):
    """The same window functions, the least x first; ties are equal in all of them."""
    ordered = frame.assign(blank=frame["key"].where(frame["missing"] == 0, -1)).sort_values("x", kind="stable")
    groups = ordered.groupby("blank")
    made = ordered.assign(rank=groups["x"].rank("min"), dense=groups["x"].rank("dense"), whole=groups["y"].transform("sum"))  # fmt: skip
    made["peers"] = groups["y"].cumsum().groupby([ordered["blank"], ordered["x"]]).transform("last")
    flagged = ordered["x"].where(ordered["flag"] == 1, 65535).groupby(ordered["blank"])
    made["least"], made["most"] = flagged.transform("min"), ordered["x"]
    made["above"], made["below"] = groups["x"].shift(2, fill_value=0), groups["x"].shift(-1, fill_value=0)
    return made.drop(columns="blank").astype(np.int64)


@settings(max_examples=2, deadline=None)
@given(n=st.integers(0, 25), m=st.integers(1, 25), filling=st.integers(0, 9), seed=st.integers(0, 999))
def test_operators_give_what_pandas_gives(n, m, filling, seed):
    rng = np.random.default_rng(seed)
    sites = [rows_of(rng, n), rows_of(rng, m)]
    values = [(sites[0], n + filling + 1), (sites[1], m)]
    rows = {name: np.concatenate([site[name] for site in sites]).astype(np.int64) for name in LAYOUT}
    frame = pd.DataFrame(rows)
    few = frame[frame["x"] < 100]
    # A missing key is one group, whatever lies below it.
    blank = frame.assign(key=frame["key"].where(frame["missing"] == 0, -1))
    totals = grouped(few.assign(all=0), "all").drop(columns="all")
    top = few.assign(blank=few["key"].where(few["missing"] == 0, 0), down=-few["x"])
    top = top.sort_values(["missing", "blank", "down"], kind="stable").head(3)
    for found, _ in queries(values, seed=seed):
        assert as_rows(found["all"]) == as_rows(rows)
        assert as_rows(found["few"]) == as_rows(few[["x", "y"]])
        groups = pd.DataFrame(found["groups"])
        groups["key"] = groups["key"].astype(np.int64).where(groups["missing"] == 0, -1)
        assert as_rows(groups.drop(columns="missing")) == as_rows(grouped(blank, "key"))
        assert as_rows(found["distinct"]) == as_rows(frame[["key", "x"]].drop_duplicates())
        if len(few):
            assert as_rows(found["total"]) == as_rows(totals)
        else:
            assert as_rows(found["total"]) == [(0, 65535, 0, 0, 0, 0)]
        assert as_rows(found["window"]) == as_rows(running(few))
        assert as_rows(found["windows"]) == as_rows(windowed(few))
        first = pd.DataFrame(found["firsts"])
        assert set(first[first["first"] == 1]["flag"]) <= {1}
        least: dict[int, int] = {}
        for key, missing, x, _, flag in few[list(LAYOUT)].itertuples(index=False):
            if flag:
                least[-1 if missing else int(key)] = min(int(x), least.get(-1 if missing else int(key), 1 << 16))
        marked = first[first["first"] == 1]
        assert sorted(zip(marked["key"].where(marked["missing"] == 0, -1), marked["x"], strict=True)) == sorted(least.items())  # fmt: skip
        for name in LAYOUT:
            assert found["top"][name].tolist() == top[name].tolist()


JOINED = {"key": 7, "missing": 1, "z": 40, "w": None}


async def sides(trio, values):
    (left, right), capacities = values
    tables = []
    for i, (rows, layout) in enumerate(((left, JOINED), (right, LAYOUT))):
        mine = rows if trio.numbers.me == f"p{i}" else None
        tables.append(await share_table(trio, f"p{i}", layout=layout, capacity=capacities[i], rows=mine))
    return tables


@among_three
async def joins(trio, values):
    left, right = await sides(trio, values[:2])
    on = [(key_of(left), key_of(right))]
    plain = left.keep_columns(["z", "w"])
    inner, overflow = await join_many(plain, right, on, bound=values[2])
    outer, over_outer = await join_many(plain, right, on, bound=values[2], outer=True)
    return {
        "unique": await open_table(await join_unique(left, right, on, ["z", "w"])),
        "outer unique": await open_table(await join_unique(left, right, on, ["z", "w"], outer=True)),
        "semi": await open_table(await semi_join(right, left, [(b, a) for a, b in on])),
        "anti": await open_table(await semi_join(right, left, [(b, a) for a, b in on], anti=True)),
        "many": await open_table(inner),
        "outer many": await open_table(outer),
        "overflow": [int((await trio.open(bit))[0]) for bit in (overflow, over_outer)],
    }


@settings(max_examples=3, deadline=None)
@given(n=st.integers(0, 14), m=st.integers(0, 18), seed=st.integers(0, 999))
def test_joins_give_what_pandas_gives(n, m, seed):
    rng = np.random.default_rng(seed)
    right = rows_of(rng, m, keys=6)
    left = {"key": rng.integers(0, 6, n), "missing": rng.integers(0, 4, n) == 0, "z": rng.integers(1, 2**40, n), "w": rng.integers(-99, 99, n)}  # fmt: skip
    a, b = (pd.DataFrame(side).astype(np.int64) for side in (left, right))
    keyed_a, keyed_b = a[a["missing"] == 0], b[b["missing"] == 0]
    inner = keyed_b.merge(keyed_a.drop(columns="missing"), on="key")
    alone = b[~(b["key"].isin(keyed_a["key"]) & (b["missing"] == 0))]
    outer = pd.concat([inner.assign(matched=1), alone.assign(matched=0, z=0, w=0)])
    first = keyed_a.drop_duplicates("key").drop(columns="missing")
    unique = keyed_b.merge(first, on="key")
    expected = {
        "unique": unique, "outer unique": pd.concat([unique.assign(matched=1), alone.assign(matched=0, z=0, w=0)]),
        "semi": b.drop(alone.index), "anti": alone, "many": inner, "outer many": outer,
    }  # fmt: skip
    bound = max(1, len(outer))
    for found, _ in joins(((left, right), (n + 1, m + 2), bound), seed=seed):
        for name, frame in expected.items():
            assert as_rows(found[name]) == as_rows(frame.astype(np.int64)), name
        assert found["overflow"] == [0, 0]


@among_three
async def too_many(trio, values):
    left, right = await sides(trio, values[:2])
    found = []
    for bound in (5, 6, 7):
        table, overflow = await join_many(
            left.keep_columns(["z"]), right, [(SortKey(left.words("key")), "key")], bound=bound
        )
        found.append((int((await trio.open(overflow))[0]), len((await open_table(table))["z"])))
    return found


def test_a_join_beyond_its_bound_says_so():
    """Two rows against three of one key are six pairs."""
    left = {"key": [3, 3], "missing": [0, 0], "z": [1, 2], "w": [0, 0]}
    right = {"key": [3, 3, 3], "missing": [0] * 3, "x": [0] * 3, "y": [1, 2, 3], "flag": [0] * 3}
    for found, _ in too_many(((left, right), (2, 4))):
        assert found == [(1, 5), (0, 6), (0, 6)]


@among_three
async def told_pairs(trio, values):
    left, right = await sides(trio, values)
    opened = []

    async def open_size(total):
        opened.append(int((await trio.open(total))[0]))
        return max(1, opened[-1])

    on = [(SortKey(left.words("key")), "key")]
    table, overflow = await join_many(left.keep_columns(["z"]), right, on, bound=open_size)
    return opened, len(table), int((await trio.open(overflow))[0]), len((await open_table(table))["z"])


@pytest.mark.parametrize(("keys", "pairs"), [([3, 3, 7], 6), ([8, 9, 9], 0)])
def test_a_join_whose_size_is_opened_has_as_many_rows(keys, pairs):
    left = {"key": keys, "missing": [0] * 3, "z": [1, 2, 3], "w": [0] * 3}
    right = {"key": [3, 3, 3], "missing": [0] * 3, "x": [0] * 3, "y": [1, 2, 3], "flag": [0] * 3}
    for found, _ in told_pairs(((left, right), (4, 4))):
        assert found == ([pairs], max(1, pairs), 0, pairs)


# ------------------------------------------------------------------ what is seen


@among_three
async def all_operators(trio, values):
    """Every operator, with nothing opened but what a sort opens; the marks tell operators apart."""
    left, right = await sides(trio, values)
    on = [(key_of(left), key_of(right))]
    grouped_rows = await group_rows(right, [key_of(right)], AGGREGATES)
    await total_rows(right, AGGREGATES)
    await distinct_rows(right, ["key", "x"])
    await window_rows(right, ["key"], ["x"], AGGREGATES)
    await window_columns(right, [key_of(right)], [SortKey(right.words("x"))], WINDOWS)
    await mark_firsts(right, [key_of(right)], [SortKey(right.words("x"))], where=right.words("flag"))
    await sort_table(right, [key_of(right)], limit=2)
    await right.filter_rows(right.words("flag"))
    await join_unique(left, right, on, ["z", "w"], outer=True)
    await semi_join(right, left, [(b, a) for a, b in on])
    await join_many(left.keep_columns(["z", "w"]), right, on, bound=9, outer=True)
    return await grouped_rows.clear_rows()


def test_what_is_sent_depends_on_public_sizes_alone(monkeypatch):
    """With all pairs compared at once, a sort sends what its rows need; what it sends otherwise follows from a uniform order.

    Every message is masked besides: its bits are ones as often as zeros, whatever the rows.
    """
    monkeypatch.setattr(sorting_module, "_SMALL", 1 << 20)
    rng = np.random.default_rng(0)
    many = rows_of(rng, 40)
    none = {name: values[:0] for name, values in many.items()}
    same = {name: np.zeros(40, np.int64) for name in LAYOUT}
    transcripts = []
    for right in (many, none, same):
        left = {"key": right["key"], "missing": right["missing"], "z": right["x"], "w": right["y"]}
        runs = all_operators(((left, right), (40, 40)))
        transcripts.append([peers.sizes for _, peers in runs])
        for _, peers in runs:
            raw = seen_bytes(peers)
            assert abs(np.unpackbits(raw).mean() - 0.5) < 0.01
    assert transcripts[0] == transcripts[1] == transcripts[2]


# ------------------------------------------------------------------ owners and askers outside


@task
async def owner(island, peers, capacity):
    await send_table(peers, ["p0", "p1", "p2"], island.secret, island.data, layout=LAYOUT, capacity=capacity)


@task
async def asker(island, peers, rows):
    """The table, and the columns and bits as they arrive."""
    kept = Recorder(peers)
    found = await collect_table(kept, ["p0", "p1", "p2"], layout={"key": 7, "total": None}, rows=rows)
    first, second = (message for _, message in kept.seen)
    one, other = (
        (part[:rows], part[rows : 9 * rows].copy().view(np.uint64), part[9 * rows :]) for part in (first, second)
    )
    return found, [one[0] ^ other[0], one[1] + other[1], one[2] ^ other[2]]


@task
async def helper(island, peers, me, capacity):
    parties = ["p0", "p1", "p2"]
    async with ReplicatedComputation(island, peers, parties, me, ReplicatedSharing(WordRing(64))) as it:
        table = await share_table(await it.trio(), "owner", layout=LAYOUT, capacity=capacity)
        groups = await group_rows(table, ["key"], {"total": RowAggregate("sum", "y")})
        await deliver_table(groups, "asker")


def test_an_owner_and_an_asker_may_be_outside_and_see_what_counts():
    """Rows that do not count arrive as zeros, and the places of the others are drawn."""
    rows, places = rows_of(np.random.default_rng(1), 12), []

    async def talk(fed):
        roles = {me: (me, helper.with_args(me=me, capacity=20)) for me in ("p0", "p1", "p2")}
        roles |= {"owner": ("owner", owner.with_args(capacity=20)), "asker": ("asker", asker.with_args(rows=20))}
        return (await fed.session(roles))["asker"]

    people = Community({"p0": None, "p1": None, "p2": None, "owner": rows, "asker": None})
    expected = pd.DataFrame(rows).groupby("key")["y"].sum().reset_index(name="total")
    for seed in range(2):
        found, (keys, totals, valid) = atoll.simulate(talk, people, engine="inline", progress=False, secret_seed=seed)
        assert as_rows(found) == as_rows(expected)
        assert valid.sum() == len(expected) < 20
        assert not keys[valid == 0].any()
        assert not totals[valid == 0].any()
        places.append(np.flatnonzero(valid).tolist())
    assert places[0] != places[1]


@among_three
async def shown(trio, values):
    return (await open_table(await shared(trio, values)))["key"].tolist()


def test_rows_are_shown_in_a_drawn_order():
    rows = {name: np.arange(12) % 2 if name in ("missing", "flag") else np.arange(12) for name in LAYOUT}
    values = [(rows, 12), ({name: column[:0] for name, column in rows.items()}, 1)]
    orders = [shown(values, seed=seed)[0][0] for seed in range(2)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == list(range(12)) == sorted(orders[1])


# ------------------------------------------------------------------ bad input


@among_three
async def refused(trio, values):
    rows, what = values
    mine = rows if trio.numbers.me == "p0" else None
    table = await share_table(trio, "p0", layout={"key": 8, "y": None}, capacity=3, rows=mine)
    await WRONG[what](table)


WRONG = {
    "rows": None,
    "no column": lambda table: group_rows(table, ["kye"], {}),
    "no key": lambda table: group_rows(table, [], {}),
    "no join": lambda table: semi_join(table, table, []),
    "numbers": lambda table: group_rows(table, ["y"], {}),
    "least": lambda table: group_rows(table, ["key"], {"least": RowAggregate("min", "y")}),
    "both": lambda table: join_unique(table, table, [("key", "key")], ["y"]),
    "layouts": lambda table: concatenated_alone([table, table.keep_columns(["y"])]),
    "lengths": lambda table: concatenated_alone([table.with_columns({"z": table.words("key")[:2]})]),
    "none": lambda table: concatenated_alone([table.take_rows(slice(0))]),
    "bound": lambda table: join_many(table.keep_columns([]), table, [(SortKey(table.words("key")), "key")], bound=0),
}


async def concatenated_alone(tables):
    concatenate_tables(tables)


GOOD = {"key": [1, 2], "y": [3, 4]}


@pytest.mark.parametrize(
    ("rows", "what", "error", "match"),
    [
        ({"key": [1, 2, 3, 4], "y": [1, 2, 3, 4]}, "rows", DataError, "4 rows"),
        ({"key": [1, 2]}, "rows", DataError, "columns of"),
        ({"key": [1, 300], "y": [1, 2]}, "rows", DataError, "the value 300 in words of 8 bits"),
        ({"key": [1, 2], "y": [1.5, 2]}, "rows", DataError, "values of type float64"),
        (GOOD, "no column", ConfigError, "no column 'kye'"),
        (GOOD, "no key", ConfigError, "no key"),
        (GOOD, "no join", ConfigError, "no key"),
        (GOOD, "numbers", ConfigError, "column 'y' of numbers"),
        (GOOD, "least", ConfigError, "column 'y' of numbers"),
        (GOOD, "both", ConfigError, "in both tables"),
        (GOOD, "layouts", ConfigError, "tables of"),
        (GOOD, "lengths", ConfigError, "in a table of 3"),
        (GOOD, "none", ConfigError, "a table of 0 rows"),
        (GOOD, "bound", ConfigError, "bound=0"),
    ],
)
def test_what_cannot_be_is_named(rows, what, error, match):
    with pytest.raises(error, match=match):
        refused((rows, what))


class Liar(Recorder):
    """Peers of a party that sends arrays or tables in another form."""

    def __init__(self, peers, lie, of_table):
        super().__init__(peers)
        self._lie, self._of_table = lie, of_table

    async def send(self, role, message):
        await super().send(role, self._lie(message) if isinstance(message, list) is self._of_table else message)


@among_three
async def cut(trio, values):
    rows, extra = values
    table = (await shared(trio, [(rows, len(rows["x"]))])).keep_columns(["x", "y"])
    few = await table.filter_rows(await less_words(table.words("x"), trio.constant(np.full(len(table), 100), 16)))
    made = await compact_rows(few, trio.numbers.constant(np.array([extra])))
    seen = await trio.open(made.valid)
    repeats = [await trio.open(await find_repeated_keys(few, [SortKey(few.words("x"))], most)) for most in (1, 2)]
    return {"places": seen, "rows": await open_table(made), "repeats": [bool(one.any()) for one in repeats]}


@settings(max_examples=6)
@given(st.lists(st.sampled_from([1, 2, 3, 500]), min_size=3, max_size=12), st.integers(0, 14))
def test_a_table_is_cut_to_its_rows_and_some_more_and_loses_none(words, extra):
    count = sum(one < 100 for one in words)
    x, y = np.array(words), np.arange(len(words)) * 2**40
    zeros = np.zeros(len(words), np.int64)
    found = [one for one, _ in cut(({"key": zeros, "missing": zeros, "x": x, "y": y, "flag": zeros}, extra))]
    for one in found:
        assert len(one["places"]) == max(1, min(len(words), count + extra))
        assert as_rows(one["rows"]) == as_rows({"x": x[x < 100], "y": y[x < 100]})
        most = max((words.count(word) for word in (1, 2, 3)), default=0)
        assert one["repeats"] == [most > 1, most > 2]


def test_where_the_rows_of_a_cut_table_lie_is_drawn():
    """Four rows that count and four of eight that do not: over draws each place has one as often."""
    zeros, x = np.zeros(12, np.int64), np.array([1] * 4 + [500] * 8)
    drawn = [cut(({"key": zeros, "missing": zeros, "x": x, "y": zeros, "flag": zeros}, 4), seed=k)[0][0]["places"] for k in range(30)]  # fmt: skip
    assert all(len(one) == 8 for one in drawn)
    assert np.all(
        np.abs(np.sum(drawn, axis=0, dtype=np.int64) - 15) <= 12
    )  # 4.4 standard deviations of a binomial of 30


@among_three
async def lied_to(trio, values):
    what, lie = values
    peers = trio.numbers.peers
    if trio.numbers.me == "p0":
        trio.numbers.peers = Liar(peers, lie, what == "table")
    if what == "table":
        await share_table(trio, "p0", layout={"key": 8}, capacity=2, rows={"key": [1, 2]})
    await trio.conjoin(*[trio.constant(np.arange(3), 16)] * 2)


@pytest.mark.parametrize(
    ("what", "lie", "match"),
    [
        ("words", lambda message: message[:-1], r"uint8\[5\] in place of words uint8\[6\]"),
        ("words", lambda message: message.astype(np.uint16), r"uint16\[6\] in place of"),
        ("words", lambda message: message.tolist(), "list in place of words"),
        ("table", lambda message: message[:1], "a list in place of a table"),
        ("table", lambda message: [part[:-1] for part in message], "in place of 4 bytes of shares"),
        ("table", lambda message: ["seed", "seed"], "str in place of 4 bytes of shares"),
    ],
)
def test_messages_of_another_form_end_the_computation_by_name(what, lie, match):
    with pytest.raises(LetterError, match=match):
        lied_to((what, lie))


@pytest.mark.parametrize(("operation", "column"), [("median", "y"), ("sum", None), ("count", "y")])
def test_an_aggregate_has_an_operation_and_its_column(operation, column):
    with pytest.raises(ConfigError, match=operation):
        RowAggregate(operation, column)
