"""Generations: atomic, two of them kept, and refused when they cannot be trusted."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.core.errors import CheckpointError, MessageError
from atoll.core.persistence.checkpoint import CheckpointStore
from atoll.core.persistence.files import read_message, write_message
from atoll.core.persistence.state_table import StateStore
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.core.world import World
from atoll.engines import Inline
from atoll.simulation import run_in
from atoll.testing import Killed, live


@task
def count(island, message):
    island.state = {"n": (island.state or {"n": 0})["n"] + 1, "x": np.full(3, island.data)}
    return island.state["n"]


def counting(rounds):
    async def program(fed):
        state = await fed.restore({"round": 0, "counts": []})
        while state["round"] < rounds:
            replies = await fed.ask_all(fed.parties[state["round"] % 2 :], count)
            fed.record({"round": state["round"]})
            state = {"round": state["round"] + 1, "counts": replies.values}
            await fed.checkpoint(state)
        return {**state, "records": len(fed.records)}

    return program


def world(folder, resume=False, **more):
    return World(Community([1.0, 2.0, 3.0]), Inline(), folder=folder, resume=resume, **more)


def names(folder, pattern):
    return sorted(p.name for p in folder.glob(pattern))


def test_two_generations_are_kept_and_no_garbage(tmp_path):
    run_in(world(tmp_path), counting(5))
    assert names(tmp_path, "generation-*") == ["generation-00000004.msg", "generation-00000005.msg"]
    manifest = read_message(tmp_path / "generation-00000005.msg")
    named = {n for chain in manifest["slots"]["main"]["homes"].values() for n in chain}
    assert set(names(tmp_path, "state-*")) == named
    assert run_in(world(tmp_path, True), counting(5))[0] == {"round": 5, "counts": [3, 5, 5], "records": 5}


def test_a_torn_newest_generation_falls_back_to_the_one_before(tmp_path):
    run_in(world(tmp_path), counting(4))
    newest = tmp_path / "generation-00000004.msg"
    newest.write_bytes(newest.read_bytes()[:-20])
    result = run_in(world(tmp_path, True), counting(5))[0]
    assert result == {"round": 5, "counts": [3, 5, 5], "records": 5}
    assert names(tmp_path, "generation-*") == ["generation-00000004.msg", "generation-00000005.msg"]


def test_a_missing_segment_falls_back_too(tmp_path):
    run_in(world(tmp_path), counting(3))
    (tmp_path / names(tmp_path, "state-00000003-*")[0]).unlink()
    assert run_in(world(tmp_path, True), counting(3))[0]["counts"] == [2, 3, 3]


def test_nothing_whole_left_is_an_error(tmp_path):
    run_in(world(tmp_path), counting(3))
    for path in tmp_path.glob("generation-*"):
        path.write_bytes(b"torn")
    with pytest.raises(CheckpointError, match=r"the file is damaged: .*generation-00000003\.msg.*start a new run"):
        run_in(world(tmp_path, True), counting(3))


@pytest.mark.parametrize("manifest", [{"format": 99}, {"x": 1}, [1, 2]])
def test_another_format_is_refused(tmp_path, manifest):
    write_message(tmp_path / "generation-00000001.msg", manifest)
    with pytest.raises(CheckpointError, match=r"another format .*resume with the version of Atoll that wrote it"):
        run_in(world(tmp_path, True), counting(1))


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    run_in(world(tmp_path), counting(2))
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(
        CheckpointError, match=r"already contains 2 generation.* of a run .*resume=True, or choose another folder"
    ):
        run_in(world(tmp_path), counting(2))
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_nor_is_one_that_was_killed_before_its_first_checkpoint(tmp_path):
    from atoll.testing.conformance.tasks import release

    async def program(fed):
        await fed.ask_all(fed.parties, release)
        await fed.checkpoint(1)

    steps = live(world(tmp_path / "whole"), program).steps
    with pytest.raises(Killed, match="before commit"):
        live(world(tmp_path / "killed"), program, kill_at=steps.index("before commit"))
    with pytest.raises(CheckpointError, match="already contains 0 generation"):
        run_in(world(tmp_path / "killed"), program)
    again = world(tmp_path / "killed", True)
    run_in(again, program)
    assert len(again.ledger) == 3


def test_a_run_in_memory_cannot_be_resumed():
    with pytest.raises(CheckpointError, match=r"a run in memory cannot be resumed.*give the run a folder"):
        run_in(world(None, True), counting(1))
    assert run_in(world(None), counting(3))[0]["counts"] == [2, 3, 3]


def test_a_world_can_run_two_programs_one_after_the_other():
    one = world(None)
    first, second = (run_in(one, counting(3))[0] for _ in range(2))
    assert first == second == {"round": 3, "counts": [2, 3, 3], "records": 3}


def test_a_full_disk_keeps_the_previous_generation(tmp_path, monkeypatch):
    import os

    real = os.fsync

    async def program(fed):
        state = await fed.restore({"round": 0})
        while state["round"] < 4:
            await fed.ask_all(fed.parties, count)
            state = {"round": state["round"] + 1}
            if state["round"] == 2:
                monkeypatch.setattr(
                    os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device"))
                )
                with pytest.raises(CheckpointError, match="No space left on device"):
                    await fed.checkpoint(state)
                monkeypatch.setattr(os, "fsync", real)
            else:
                await fed.checkpoint(state)
        return (await fed.ask_all(fed.parties, count)).values

    assert run_in(world(tmp_path), program)[0] == [5, 5, 5]
    # What the failed checkpoint would have held is in the next one.
    assert run_in(world(tmp_path, True), program)[0] == [5, 5, 5]


def test_a_full_disk_ends_the_run_with_the_reason(tmp_path, monkeypatch):
    run_in(world(tmp_path), counting(2))
    monkeypatch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(
        CheckpointError, match=r"No space left on device .*then resume; the previous checkpoint is intact"
    ):
        run_in(world(tmp_path, True), counting(3))
    monkeypatch.undo()
    assert run_in(world(tmp_path, True), counting(3))[0] == {"round": 3, "counts": [2, 3, 3], "records": 3}


def test_a_state_that_is_no_message_says_where(tmp_path):
    async def program(fed):
        await fed.checkpoint({"model": {"bad": {1, 2}}})

    with pytest.raises(MessageError, match="bad"):
        run_in(world(tmp_path), program)


def test_segments_are_renewed_so_that_their_number_stays_bounded(tmp_path):
    run_in(world(tmp_path), counting(150))
    assert len(names(tmp_path, "state-*")) < 135
    assert len(names(tmp_path, "records-*")) < 135
    assert run_in(world(tmp_path, True), counting(151))[0] == {"round": 151, "counts": [76, 151, 151], "records": 151}


def test_records_of_a_resumed_run_are_handed_over(tmp_path):
    run_in(world(tmp_path), counting(3))
    restored, fresh = [], []
    run_in(world(tmp_path, True, on_restore=restored.extend, on_record=fresh.append), counting(5))
    assert [r["round"] for r in restored] == [0, 1, 2]
    assert [r["round"] for r in fresh] == [3, 4]


def test_private_state_goes_back_to_its_generation(tmp_path):
    store = StateStore(tmp_path)
    store.put("main", 3, {"a": np.arange(3)})
    store.put("other", 3, "else")
    first = store.commit("main", 1)
    store.settle("main")
    store.put("main", 3, {"a": np.arange(4)})
    store.put("main", 5, 7)
    second = store.commit("main", 2)
    again = StateStore(tmp_path)
    again.load("main", first + second)
    assert (again.get("main", 3)["a"].tolist(), again.get("main", 5), again.list_touched("main")) == (
        [0, 1, 2, 3],
        7,
        [3, 5],
    )
    again.load("main", first)
    assert (again.get("main", 3)["a"].tolist(), again.get("main", 5)) == ([0, 1, 2], None)
    assert again.get("other", 3) is None
    assert again.commit("main", 3) == []


def test_two_scopes_in_one_generation_do_not_share_a_file(tmp_path):
    store = StateStore(tmp_path)
    store.put("main", 0, "a")
    store.put("main/x", 0, "b")
    assert len({*store.commit("main", 1), *store.commit("main/x", 1)}) == 2


def test_a_slot_that_ended_goes_with_its_parents_next_checkpoint():
    store = CheckpointStore()
    content = {"homes": {}, "book": {"segments": []}, "below": {}}
    store.write("main/a/nest:e/0", content, {})
    store.write("main/b", content, {})
    store.end("main/a", "main/a/nest:e/0")
    store.write("main/b", content, {})
    assert "main/a/nest:e/0" in store.slots  # until its parent's checkpoint it may run again
    store.write("main/a", content, {})
    assert sorted(store.slots) == ["main/a", "main/b"]
