"""A site that is lost while the others go on is waited for once: as long as the job's patience, and one beat of the watch."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from atoll.engines.link import LinkClosed
from atoll.runtime.network import Network, site_link
from tests.support.scripted_sites import honest, play, step

SOUTH = 1  # the position of the party whose site is silent


class Beats:
    """Time that passes only when the watch looks: a tenth of the patience a beat."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(site_link, "time", SimpleNamespace(monotonic=lambda: self.now))

    async def until(self, engine: Network, work: asyncio.Task[Any]) -> int:
        """Beat whenever only the silent site owes something, until work is done; how often."""
        count = 0
        while not work.done():
            owing = engine._replies.owed() | {
                SOUTH for one in engine.sites.site_links.values() if one.owes and one.name == "south"
            }
            if owing == {SOUTH} and not engine.sites.site_links["north"].owes:
                self.now += engine.patience / 10
                count += 1
                engine.check_patience()
            await asyncio.sleep(0)
        return count


def silent(order: dict[str, Any], position: int) -> list[Any]:
    del order, position
    return []


def test_a_silent_site_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tests.support.scripted_sites.honest",
        lambda o, p: honest(o, p) or [{"op": "answer", "number": o["number"], "names": []}],
    )

    async def rounds(fed: Any) -> Any:
        engine, beats = fed.world.engine, Beats(monkeypatch)
        for one in engine.sites.site_links.values():
            one.heard = one.link.heard = 0.0
        counts, silents = [], []
        for number in (1, 2, 3):
            work = asyncio.ensure_future(fed.sum(fed.parties, step, {"n": 1}, at=number, quorum=1))
            counts.append(await beats.until(engine, work))
            silents.append(work.result().silent.names)
        assert engine.sites.site_links["south"].alive  # it may come back, as long as nothing was saved without it
        saving = asyncio.ensure_future(engine.commit("main", 1))
        counts.append(await beats.until(engine, saving))
        assert not engine.sites.site_links["south"].alive
        with pytest.raises(LinkClosed, match=r"channel|closed"):
            await engine.sites.site_links["south"].link.recv()  # what runs there is let go
        return counts, silents

    counts, silents = play(rounds, silent, "drop")
    assert counts == [11, 0, 0, 0]  # ten beats are the patience
    assert silents == [["client-1"]] * 3


def test_a_site_that_speaks_again_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(order: dict[str, Any], position: int) -> list[Any]:
        return honest(order, position) if order["request"]["id"].endswith("@2") else []

    async def rounds(fed: Any) -> Any:
        engine, beats = fed.world.engine, Beats(monkeypatch)
        for one in engine.sites.site_links.values():
            one.heard = one.link.heard = 0.0
        work = asyncio.ensure_future(fed.sum(fed.parties, step, {"n": 1}, at=1, quorum=1))
        assert await beats.until(engine, work) == 11
        engine.sites.site_links["south"].mute = False  # as a pulse of it does
        return (await fed.sum(fed.parties, step, {"n": 1}, at=2)).n

    assert play(rounds, late, "drop") == 2
