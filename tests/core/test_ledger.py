"""The ledger on disk: append-only, whole, and each release once."""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter

import pytest

from atoll.core.errors import CheckpointError
from atoll.core.event import Gaussian, Laplace, Ledger
from atoll.core.requests.cohort import Community
from atoll.core.world import World
from atoll.engines import Inline
from atoll.simulation import run_in
from atoll.testing.conformance.tasks import release


def test_a_repeat_of_a_request_is_booked_once(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for _ in range(2):  # a crash cut the task off after its spending, and it ran again
        ledger.append(Laplace(epsilon=1.0), "a", "main/t/0#0")
        ledger.append(Laplace(epsilon=1.0), "a", "main/t/0#1")
        ledger.append(Laplace(epsilon=1.0), "b", "main/t/0#0")
    assert len(ledger) == 3
    again = Ledger(tmp_path / "ledger.jsonl")
    again.append(Laplace(epsilon=1.0), "a", "main/t/0#0")
    again.append(Gaussian(noise_multiplier=1.0), "a", "main/t/0#0")  # another event is another release
    again.append(Laplace(epsilon=1.0), "a")
    again.append(Laplace(epsilon=1.0), "a")  # without a request nothing is known to be a repeat
    assert len(again) == 6
    assert list(again) == list(Ledger(tmp_path / "ledger.jsonl"))


def test_another_run_in_the_same_world_is_another_release():
    world = World(Community([1.0, 2.0]), Inline())
    for total in (2, 4):
        run_in(world, lambda fed: fed.ask_all(fed.parties, release))
        assert len(world.ledger) == total


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_line_never_happened_and_does_no_harm(tmp_path, cut):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.append(Laplace(epsilon=1.0), "a", "r#0")
    ledger.append(Laplace(epsilon=2.0), "a", "r#1")
    path.write_bytes(path.read_bytes()[:-cut])
    again = Ledger(path)
    assert [e["epsilon"] for e in again] == [1.0]
    again.append(Laplace(epsilon=3.0), "a", "r#2")
    assert [e["epsilon"] for e in Ledger(path)] == [1.0, 3.0]


def test_a_damaged_line_is_never_repaired_by_guessing(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    for i in range(3):
        ledger.append(Laplace(epsilon=1.0), "a", f"r#{i}")
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], lines[1][:9], lines[2], b""]))
    with pytest.raises(CheckpointError, match=r"line 2 of the privacy ledger is not JSON .*never repaired by guessing"):
        Ledger(path)


def test_nothing_is_released_when_the_disk_is_full(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    monkeypatch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(CheckpointError, match="No space left on device"):
        ledger.append(Laplace(epsilon=1.0), "a", "r#0")
    assert len(ledger) == 0


def test_a_ledger_outlives_jobs_and_counts_each_of_them(tmp_path):
    path = tmp_path / "ledger.jsonl"
    for job in ("first", "second", "first"):  # the first is resumed: its request was booked
        Ledger(path, job).append(Laplace(epsilon=1.0), ["a", "b"], "main/t/0#0")
    assert [(e["job"], e["party"]) for e in Ledger(path)] == [(j, p) for j in ("first", "second") for p in "ab"]


def test_a_new_run_forgets_only_its_own_requests(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", "second")
    ledger.append(Laplace(epsilon=1.0), "a", "r#0", job="first")
    ledger.append(Laplace(epsilon=1.0), "a", "r#0")
    ledger.begin_run()
    ledger.append(Laplace(epsilon=1.0), "a", "r#0", job="first")
    ledger.append(Laplace(epsilon=1.0), "a", "r#0")
    assert [e["job"] for e in ledger] == ["first", "second", "second"]


def test_writers_of_one_file_see_each_other(tmp_path):
    one, other = (Ledger(tmp_path / "ledger.jsonl", job) for job in ("one", "other"))
    for number in range(4):
        one.append(Laplace(epsilon=1.0), "a", f"r#{number}")
        other.append(Laplace(epsilon=2.0), "a", f"r#{number}")
    one.update()
    assert [e["job"] for e in one] == [e["job"] for e in other] == ["one", "other"] * 4
    again = Ledger(tmp_path / "ledger.jsonl", "one")
    again.append(Laplace(epsilon=1.0), "a", "r#4")
    one.append(Laplace(epsilon=1.0), "a", "r#4")  # another process of the same job has written it
    assert len(one) == 9


def _write(path, job):
    ledger = Ledger(path, job)
    for number in range(25):
        ledger.append(Laplace(epsilon=1.0), "a", f"r#{number}")


@pytest.mark.network
def test_processes_that_write_at_once_lose_nothing(tmp_path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(tmp_path / "ledger.jsonl", job)) for job in ("x", "y", "z", "z")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert Counter(e["job"] for e in Ledger(tmp_path / "ledger.jsonl")) == {"x": 25, "y": 25, "z": 25}


@pytest.mark.parametrize("how", ["changed", "removed", "swapped", "unhashed"])
def test_a_line_that_was_touched_is_noticed(tmp_path, how):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    for i in range(4):
        ledger.append(Laplace(epsilon=1.0 + i), "a", f"r#{i}")
    lines = path.read_text().splitlines(keepends=True)
    if how == "changed":
        lines[1] = lines[1].replace('"epsilon": 2.0', '"epsilon": 0.1')
    elif how == "removed":
        del lines[1]
    elif how == "swapped":
        lines[1:3] = lines[2:0:-1]
    else:
        lines[1] = json.dumps({k: v for k, v in json.loads(lines[1]).items() if k != "hash"}) + "\n"
    path.write_text("".join(lines))
    with pytest.raises(CheckpointError, match=r"the privacy ledger was changed: line 2 does not follow"):
        Ledger(path)


def test_a_ledger_that_became_shorter_is_noticed(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    for i in range(2):
        ledger.append(Laplace(epsilon=1.0), "a", f"r#{i}")
    path.write_bytes(path.read_bytes().split(b"\n")[0] + b"\n")
    with pytest.raises(CheckpointError, match="is shorter than it was"):
        ledger.append(Laplace(epsilon=1.0), "a", "r#2")


def test_lines_without_hashes_of_older_versions_are_kept_and_bound(tmp_path):
    path = tmp_path / "ledger.jsonl"
    old = {"party": "a", "request": "r#0", **Laplace(epsilon=1.0).pack()}
    path.write_text(json.dumps(old) + "\n")
    Ledger(path).append(Laplace(epsilon=1.0), "a", "r#1")
    Ledger(path).append(Laplace(epsilon=1.0), "a", "r#0")
    assert [e["request"] for e in Ledger(path)] == ["r#0", "r#1"]
    path.write_text(path.read_text().replace('"epsilon": 1.0', '"epsilon": 0.5', 1))
    with pytest.raises(CheckpointError, match="line 2 does not follow"):
        Ledger(path)


def test_a_reader_leaves_the_file_as_it_is(tmp_path):
    path = tmp_path / "ledger.jsonl"
    Ledger(path).append(Laplace(epsilon=1.0), "a", "r#0")
    torn = path.read_bytes() + b'{"party": "a"'
    path.write_bytes(torn)
    assert len(Ledger(path, readable=True)) == 1
    assert path.read_bytes() == torn


def test_the_head_names_the_last_line(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    assert ledger.head == "0:"
    ledger.append(Laplace(epsilon=1.0), "a", "r#0")
    assert ledger.head == Ledger(path).head == f"1:{json.loads(path.read_text())['hash']}"
