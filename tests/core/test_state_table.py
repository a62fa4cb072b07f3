"""Private states in columns: a table is a dict of trees, whatever the forms, however little memory it may take."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core import message as M
from atoll.core.errors import CheckpointError, ConfigError
from atoll.core.execution.host import Draft
from atoll.core.persistence.files import read_message
from atoll.core.persistence.records import Allowance, Records, quarter_of_memory
from atoll.core.persistence.state_table import MOST_FORMS, SEGMENT_BYTES, StateBlock, States, StateStore, StateTable
from atoll.core.requests.party import Roster
from atoll.testing.strategies import messages

LIMITS = [None, 0]  # bytes: all in memory, all in files


def vector(size, seed=0, dtype=np.float32):
    return {
        "v": np.random.default_rng(seed).normal(size=size).astype(dtype),
        "n": np.int64(seed),
        "t": (1.5, None, True),
    }


states = st.one_of(
    st.builds(vector, st.integers(0, 3), st.integers(0, 9), st.sampled_from([np.float32, np.float64])),
    st.sampled_from(
        [None, {}, {"a": 1}, {"a": 2**70}, {"a": 1.0}, {"a": np.float32(1)}, {"a": "text"}, [np.arange(3)]]
    ),
)
puts = st.lists(st.tuples(st.integers(0, 6), states), max_size=30)


@pytest.mark.parametrize("limit", LIMITS)
@given(state=messages())
def test_a_state_comes_back_as_the_type_it_was(limit, state):
    table = StateTable(Allowance(limit))
    table.put(3, state)
    assert M.equal(table.get(3), state)
    assert M.equal(States.unpack(M.decode(M.encode(table.pick(np.array([3])).pack()))).by_position()[3], state)


@pytest.mark.parametrize("limit", LIMITS)
@settings(max_examples=settings.default.max_examples // 2)
@given(first=puts, second=puts, others=puts)
def test_a_shelf_is_a_dict(limit, first, second, others):
    table, model = StateTable(Allowance(limit)), {}
    for position, state in first:
        table.put(position, state)
        model[position] = state
    table.settle()
    assert table.positions(changed=True).tolist() == []
    for position, state in second:
        table.put(position, state)
        model[position] = state
    block = StateTable.holding(States(dict(others)))
    table.put_all(block.pick(block.positions()))
    model.update(others)
    assert table.positions().tolist() == sorted(model)
    assert table.positions(changed=True).tolist() == sorted({p for p, _ in [*second, *others]})
    asked = np.array([6, 0, 3, 1])
    picked = table.pick(asked).by_position()
    assert M.equal([picked[p] for p in sorted(picked)], [model[p] for p in sorted(model) if p in asked])
    for position in range(8):
        assert M.equal(table.get(position), model.get(position))


@pytest.mark.parametrize("limit", LIMITS)
def test_a_block_is_gathered_in_the_order_asked_and_new_clients_get_the_fresh_state(limit):
    table, fresh = StateTable(Allowance(limit)), vector(4, 99)
    for position in range(10):
        table.put(position, vector(4, position))
    asked = np.array([7, 12, 0, 3])
    stacked = table.gather(asked, fresh)
    for i, position in enumerate(asked.tolist()):
        assert np.array_equal(stacked["v"][i], (fresh if position == 12 else vector(4, position))["v"])
    assert stacked["n"].tolist() == [7, 99, 0, 3]
    assert (stacked["t"][0].tolist(), stacked["t"][1], stacked["t"][2].dtype) == ([1.5] * 4, None, bool)
    assert np.array_equal(table.gather(np.array([20, 21]), fresh)["v"], np.stack([fresh["v"]] * 2))


@settings(max_examples=30)
@given(
    under=puts,
    steps=st.lists(st.tuples(st.lists(st.integers(0, 6), min_size=1, unique=True), st.sampled_from(["singles", "block", "empty"])), max_size=3),
    asked=st.lists(st.integers(0, 7), min_size=1, max_size=4),
)  # fmt: skip
def test_a_draft_reads_what_was_left_last_and_below_it_the_table(under, steps, asked):
    table, model = StateTable(), {}
    for position, state in under:
        table.put(position, state)
        model[position] = state
    draft = Draft(table)
    for number, (positions, kind) in enumerate(steps):
        made = {p: {"v": np.full(2, p + 10.0 * number), "n": number, "x": None} for p in positions}
        if kind == "singles":
            draft.leave(States(dict(made)))
        elif kind == "block":
            left = States()
            stacked = {"v": np.stack([made[p]["v"] for p in positions]), "n": [number] * len(positions), "x": None}
            left.blocks.append(StateBlock(np.array(positions), {**stacked, "n": np.array(stacked["n"])}, ["array", "int", "none"]))  # fmt: skip
            draft.leave(left)
        else:
            continue
        model.update(made)
    for position in asked:
        assert M.equal(draft.get(position), model.get(position))


def test_what_cannot_be_stacked_is_none():
    table = StateTable()
    table.put(0, vector(4))
    table.put(1, vector(5))
    table.put(2, {"text": "alone"})
    both = np.array([0, 1])
    assert table.gather(both) is None  # two forms
    assert table.gather(np.array([0, 9])) is None  # nothing for a new client
    assert table.gather(np.array([0, 9]), vector(5)) is None  # a new client of another form
    assert table.gather(np.array([0, 2]), vector(4)) is None  # text has no column
    assert table.gather(both[:0], vector(4)) is None
    assert table.gather(both[:1])["v"].shape == (1, 4)


def test_what_is_read_or_was_put_can_be_changed_without_harm():
    for state in ({"x": np.zeros(3)}, {"x": np.zeros(3), "text": "no column"}):
        table = StateTable()
        table.put(0, state)
        state["x"] += 1
        table.get(0)["x"][:] = 2
        table.pick(np.array([0])).by_position()[0]["x"][:] = 3
        assert table.get(0)["x"].tolist() == [0, 0, 0]


def test_forms_beyond_the_first_few_are_kept_one_by_one_and_abandoned_tables_serve_again():
    table = StateTable()
    for position in range(2 * MOST_FORMS):
        table.put(position, {"x": np.full(position + 1, 1.0)})
    everyone = table.positions()
    assert len(table.pick(everyone).blocks) == MOST_FORMS
    assert len(table.pick(everyone).singles) == MOST_FORMS
    for position in everyone.tolist():
        table.put(position, {"y": np.full(3, float(position))})
    assert list(table.pick(everyone).singles) == [0]  # when it moved, no table was empty yet
    for position in everyone.tolist():
        table.put(position, {"y": np.full(3, float(position))})
    assert table.gather(everyone)["y"][:, 0].tolist() == everyone.tolist()


def test_records_stay_in_memory_up_to_the_limit_and_go_to_a_file_beyond_it(tmp_path):
    allowance = Allowance(1000, tmp_path)
    first, second = (Records(np.dtype([("x", "f8")]), allowance) for _ in range(2))
    first.reserve(100)
    assert (first.spilled, allowance.used) == (False, 800)
    first.column("x")[:] = np.arange(100)
    second.reserve(50)
    assert (second.spilled, allowance.used) == (True, 800)
    first.reserve(200)
    assert (first.spilled, allowance.used) == (True, 0)
    assert first.column("x")[:100].tolist() == list(range(100))
    third = Records(np.dtype([("x", "f8")]), allowance)
    third.reserve(100)
    assert allowance.used == 800
    del third
    assert allowance.used == 0
    assert list(tmp_path.iterdir()) == []  # the files have no name: no crash can leave one behind


def put_block(table, start, count, width):
    rows = np.arange(start, start + count)
    states = {"c": np.repeat(rows[:, None], width, 1).astype("f4")}
    table.put_all(States(blocks=[StateBlock(rows, states, ["array"])]))


@pytest.mark.parametrize("limit", [8 << 20, 1 << 30])
def test_the_limit_bounds_memory(limit):
    """10,000 clients of 4 kB are 40 MB. Counted are the table's own bytes; what else it allocates is some blocks' worth and the index."""
    allowance = Allowance(limit)
    table, cohort, used = StateTable(allowance), 500, 0
    tracemalloc.start()
    try:
        for start in range(0, 10_000, cohort):
            put_block(table, start, cohort, 1024)
            used = max(used, allowance.used)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert table.spilled == (limit < 40 << 20)
    assert used <= limit
    assert used < 1.26 * 10_000 * 4096  # at most a quarter in reserve
    assert allowance.used == (0 if table.spilled else used)
    assert peak < 4 * cohort * 4096
    rows = np.random.default_rng(0).permutation(10_000)[:cohort]
    assert np.array_equal(table.gather(rows)["c"], np.repeat(rows[:, None], 1024, 1))


def test_growing_keeps_every_row_where_maps_cannot_be_resized(monkeypatch):
    monkeypatch.setattr("atoll.core.persistence.records.sys.platform", "darwin")
    table = StateTable()
    for start in range(0, 3000, 500):
        put_block(table, start, 500, 512)
    assert table.gather(np.arange(3000))["c"][:, 5].tolist() == list(range(3000))


def test_a_disk_too_full_to_take_the_states_is_a_clear_error(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    table = StateTable(Allowance(100, tmp_path))
    table.put(0, {"x": np.zeros(1)})
    monkeypatch.setattr("os.posix_fallocate", full, raising=False)
    with pytest.raises(CheckpointError, match=r"could not move \d+ bytes .*No space left.*or allow .*state_memory"):
        table.put_all(States(blocks=[StateBlock(np.arange(1, 40), {"x": np.ones((39, 1))}, ["array"])]))
    assert table.get(0)["x"].tolist() == [0.0]


def test_a_limit_must_make_sense():
    with pytest.raises(ConfigError, match=r"-1 bytes of memory .*use 0 or more"):
        Allowance(-1)
    assert 0 < quarter_of_memory() < 1 << 50


def test_a_checkpoint_writes_changed_rows_only(tmp_path):
    store = StateStore(tmp_path)
    for position in range(100):
        store.put("main", position, vector(50, position))
    first = store.commit("main", 1)
    store.settle("main")
    store.put("main", 7, vector(50, 70))
    (second,) = store.commit("main", 2)
    (block,) = States.unpack(read_message(tmp_path / second)).blocks
    assert block.positions.tolist() == [7]
    again = StateStore(tmp_path)
    again.load("main", [*first, second])
    for position in range(100):
        assert M.equal(again.get("main", position), vector(50, 70 if position == 7 else position))
    (whole,) = again.commit("main", 3, full=True)
    assert len(States.unpack(read_message(tmp_path / whole)).positions()) == 100


def test_a_large_commit_is_cut_into_segments(tmp_path):
    store, clients = StateStore(tmp_path), 24
    wide = SEGMENT_BYTES // 8 // 8  # an eighth of a segment each
    rows = np.arange(clients)
    store.table("main").put_all(States(blocks=[StateBlock(rows, np.repeat(rows[:, None] * 1.0, wide, 1), ["array"])]))
    store.put("main", clients, {"text": "no column"})
    names = store.commit("main", 1)
    assert len(names) == 4
    assert max((tmp_path / name).stat().st_size for name in names) < 1.2 * SEGMENT_BYTES
    again = StateStore(tmp_path, memory=0)
    again.load("main", names)
    assert again.table("main").spilled
    assert again.table("main").gather(rows)[:, 0].tolist() == rows.tolist()
    assert again.get("main", clients) == {"text": "no column"}


def test_a_failed_commit_leaves_no_segment(tmp_path, monkeypatch):
    store = StateStore(tmp_path)
    monkeypatch.setattr("atoll.core.persistence.state_table.SEGMENT_BYTES", 100)
    for position in range(4):
        store.put("main", position, np.zeros(10))
    written = []

    def write(path, tree):
        if len(written) == 2:
            raise CheckpointError("disk full")
        written.append(path)
        path.write_bytes(b"")

    monkeypatch.setattr("atoll.core.persistence.state_table.write_message", write)
    with pytest.raises(CheckpointError, match="disk full"):
        store.commit("main", 1)
    assert list(tmp_path.iterdir()) == []
    assert store.table("main").positions(changed=True).tolist() == [0, 1, 2, 3]


def test_the_state_of_a_client_that_is_gone_is_refused(tmp_path):
    store = StateStore(tmp_path, Roster(["ann", "bob", "cleo"]))
    for position in range(3):
        store.put("main", position, {"n": position})
    names = store.commit("main", 1)
    StateStore(tmp_path, Roster(["ann", "bob", "cleo", "dan"])).load("main", names)
    with pytest.raises(CheckpointError, match=r"party number 2, but the federation has 2 parties.*same order"):
        StateStore(tmp_path, Roster(["ann", "bob"])).load("main", names)
    with pytest.raises(
        CheckpointError, match=r"party number 1 belongs to another party than 'cleo'.*or start a new run"
    ):
        StateStore(tmp_path, Roster(["ann", "cleo", "dan"])).load("main", names)


def test_an_ended_slot_goes_with_those_inside_it():
    store = StateStore()
    for slot in ("main", "main/a", "main/a/b", "main/ab"):
        store.put(slot, 0, {"n": 1})
    store.drop("main/a")
    assert [store.get(slot, 0) for slot in ("main", "main/a", "main/a/b", "main/ab")] == [
        {"n": 1},
        None,
        None,
        {"n": 1},
    ]
