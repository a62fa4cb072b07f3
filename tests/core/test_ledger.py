"""The ledger on disk: append-only, whole, and each release once."""

from __future__ import annotations

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
