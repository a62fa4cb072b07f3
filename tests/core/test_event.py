"""Privacy events and the append-only ledger."""

from __future__ import annotations

import dataclasses
import json

import pytest

import atoll
from atoll.core.errors import CheckpointError, ConfigError
from atoll.core.event import Event, Gaussian, Laplace, Ledger, NonPrivate, SeededSecret, register_event, unpack_event
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task

EVENTS = [
    Gaussian(noise_multiplier=1.1, sampling=0.01, unit="user", scope="*", count=3),
    Laplace(epsilon=0.5, unit="example", scope="ward-7"),
    NonPrivate(what="histogram", unit="island"),
    SeededSecret(),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: e.kind)
def test_events_are_frozen_and_travel(event):
    assert unpack_event(json.loads(json.dumps(event.pack()))) == event
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'count'"):
        event.count = 9


def test_entries_are_kept_in_order_and_on_disk(tmp_path):
    ledger = Ledger(tmp_path / "deep" / "ledger.jsonl")
    for i, event in enumerate(EVENTS):
        ledger.append(event, f"party-{i}", f"main/task/{i}")
    again = Ledger(tmp_path / "deep" / "ledger.jsonl")
    assert list(again) == list(ledger)
    assert [entry["kind"] for entry in again] == ["gaussian", "laplace", "non-private", "seeded-secret"]
    assert again._entries[0]["noise_multiplier"] == 1.1
    assert len(again) == 4


def test_a_repeat_of_one_release_is_written_once():
    ledger = Ledger()
    for _ in range(2):
        ledger.append(Laplace(epsilon=1.0), "a", "main/count/0")
    assert len(ledger) == 1
    ledger.append(Laplace(epsilon=1.0), "b", "main/count/0")
    ledger.append(Laplace(epsilon=1.0), "a", "main/count/1")
    ledger.append(Laplace(epsilon=2.0), "a", "main/count/1")
    assert len(ledger) == 4


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_last_line_never_happened(tmp_path, cut):
    """A crash while writing: the entry is gone, those before it stay, and writing goes on, across further openings."""
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.append(Laplace(epsilon=1.0), "a", "r/0")
    ledger.append(Laplace(epsilon=2.0), "b", "r/1")
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    torn = Ledger(path)
    assert [entry["party"] for entry in torn] == ["a"]
    torn.append(Laplace(epsilon=3.0), "c", "r/2")
    assert [entry["party"] for entry in Ledger(path)] == ["a", "c"]


def test_a_damaged_ledger_is_never_guessed_at(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.append(Laplace(epsilon=1.0), "a", "r/0")
    path.write_bytes(b"{not json\n" + path.read_bytes())
    with pytest.raises(CheckpointError, match="line 1 of the privacy ledger is not JSON"):
        Ledger(path)


def test_only_growth(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger, before = Ledger(path), b""
    for i in range(4):
        ledger.append(NonPrivate(what=str(i)), "a", f"r/{i}")
        after = path.read_bytes()
        assert after.startswith(before)
        assert len(after) > len(before)
        before = after


@task
def spend_then_fail(island, message):
    """Writes an event, then raises: what was spent stays spent."""
    island.spend(Laplace(epsilon=1.0, scope=island.name))
    raise RuntimeError("after spending")


def test_what_was_spent_before_a_failure_stays(tmp_path):
    async def program(fed):
        return await fed.ask_all(fed.parties, spend_then_fail, quorum=0)

    replies = atoll.simulate(program, Community([1, 2]), engine="inline", folder=tmp_path / "run", errors="drop")
    assert len(replies.errors) == 2
    assert [entry["party"] for entry in Ledger(tmp_path / "run" / "checkpoints" / "ledger.jsonl")] == [
        "client-0",
        "client-1",
    ]


def test_seeded_secrets_are_written_down(tmp_path):
    async def program(fed):
        return None

    atoll.simulate(program, Community([1]), engine="inline", folder=tmp_path / "run", secret_seed=1)
    assert [entry["kind"] for entry in Ledger(tmp_path / "run" / "checkpoints" / "ledger.jsonl")] == ["seeded-secret"]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Event(unit="person"), "unit='person' is not a unit of privacy"),
        (lambda: Event(count=0), "count=0 releases"),
        (lambda: Gaussian(noise_multiplier=-1.0), "noise_multiplier=-1.0"),
        (lambda: Gaussian(noise_multiplier=float("nan")), "noise_multiplier=nan"),
        (lambda: Gaussian(noise_multiplier=1.0, sampling=0.0), "sampling=0.0 is not a rate"),
        (lambda: Gaussian(noise_multiplier=1.0, sampling=1.5), "sampling=1.5 is not a rate"),
        (lambda: Laplace(epsilon=0.0), "epsilon=0.0"),
        (lambda: Laplace(epsilon=float("inf")), "epsilon=inf"),
        (lambda: unpack_event({"kind": "magic"}), "unknown privacy event 'magic'"),
        (lambda: register_event(type("Other", (Event,), {"kind": "laplace"})), "event kind 'laplace' is taken"),
    ],
)
def test_bad_events(make, text):
    with pytest.raises(ConfigError, match=text):
        make()
