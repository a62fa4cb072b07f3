"""Sums by Shamir's shares among users who cheat: senders that share no polynomial, holders that accuse falsely or add up wrongly, all named; with users who are lost at each step.

The protocol is `atoll.secure.checked_sums`'s: commitments, a public lot (Blum 1983), a random combination of what each sender shared, and Reed and Solomon's code.
"""

from __future__ import annotations

import numpy as np
import pytest

from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.secure import checked_sums
from atoll.secure.checked_sums import add_checked, receive_letters, send_values, show_mixed, sum_checked
from atoll.secure.shares import Field
from atoll.testing import Timetable
from tests.support.worlds import on_every_engine

FIELD, ONE = Field(), np.uint64(1)
VALUES = np.random.default_rng(0).integers(-(10**6), 10**6, (9, 4))
LOST = {"send_values": ["client-3"], "receive_letters": ["client-7"], "add_checked": ["client-0"]}


class Spoilt:
    """An island whose letters to one holder have another share."""

    def __init__(self, island, *, to, commit):
        self._island, self._to, self._commit = island, to, commit

    def __getattr__(self, name):
        return getattr(self._island, name)

    def post(self, to, payload):
        if to == self._to and not self._commit:  # what was committed to is another share
            payload = {**payload, "share": FIELD.add(payload["share"], np.ones_like(payload["share"]))}
        self._island.post(to, payload)


@task
def send_and_cheat(island, message):
    """Two users cheat: client-1 shares no polynomial and commits to that; client-2 commits to other shares than it sends to client-6."""
    if island.name == "client-1":
        made = checked_sums.split_seeded

        def split(*args):
            shares = made(*args)
            shares[4] = FIELD.add(shares[4], np.eye(1, len(shares[4]), dtype=np.uint64)[0])
            return shares

        checked_sums.split_seeded = split
        try:
            return send_values(island, message)
        finally:
            checked_sums.split_seeded = made
    return send_values(Spoilt(island, to="client-6", commit=False) if island.name == "client-2" else island, message)


@task
def show_and_lie(island, message):
    """client-5 accuses all senders."""
    rows = show_mixed(island, message)
    return FIELD.add(rows, np.ones_like(rows)) if island.name == "client-5" else rows


@task
def add_and_lie(island, message):
    """client-8 adds up wrongly."""
    rows = add_checked(island, message)
    return FIELD.add(rows, np.ones_like(rows)) if island.name == "client-8" else rows


async def honest(fed):
    found = await sum_checked(fed, fed.parties, values=4, threshold=2, at=0, deadline=5.0)
    return {"values": found.values, "senders": list(found.senders), "named": [*found.cheats, *found.liars]}


async def cheated(fed):
    found = await sum_checked(fed, fed.parties, values=4, threshold=2, at=0, share=send_and_cheat)
    return {"values": found.values, "senders": list(found.senders), "cheats": list(found.cheats), "liars": list(found.liars)}  # fmt: skip


def summed(senders):
    return VALUES[[int(name.removeprefix("client-")) for name in senders]].sum(axis=0)


@pytest.mark.quick("inline*")
@pytest.mark.parametrize(("engine", "lost"), on_every_engine((LOST,), ({},)), indirect=["engine"])
def test_sums_are_those_of_users_in_time_and_nobody_is_named(survive, lost):
    life = survive(honest, Community(list(VALUES)), cost=Timetable(lost=lost), points=2)
    senders = [f"client-{i}" for i in range(9) if f"client-{i}" not in lost.get("send_values", [])]
    assert life.result["senders"] == senders
    np.testing.assert_array_equal(life.result["values"], summed(senders))
    assert life.result["named"] == []
    assert receive_letters.name.startswith("atoll.secure.checked_sums:")


@pytest.mark.quick("inline*")
@pytest.mark.parametrize("engine", on_every_engine(()), indirect=True)
def test_cheats_are_named_and_left_out(survive, monkeypatch):
    """client-2 is no cheat in the end: it publishes the share that it committed to."""
    monkeypatch.setattr(checked_sums, "show_mixed", show_and_lie)
    monkeypatch.setattr(checked_sums, "add_checked", add_and_lie)
    life = survive(cheated, Community(list(VALUES)), points=1)
    assert (life.result["cheats"], life.result["liars"]) == (["client-1"], ["client-5", "client-8"])
    assert life.result["senders"] == [f"client-{i}" for i in range(9) if i != 1]
    np.testing.assert_array_equal(life.result["values"], summed(life.result["senders"]))
