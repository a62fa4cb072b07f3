"""Resuming: the content of a federation's checkpoint, and how it is restored.

A checkpoint covers its scope and every scope below it without its own checkpoints. A scope with its own checkpoints is only
counted (meters, records), so that what the parent knows of it stays true when its program is over. A program that runs nested in a party
keeps its own checkpoints.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from ..algebra.rng import hash64
from ..algebra.tree import Tree
from ..persistence.files import read_message, write_message
from ..persistence.packed_rows import PackedRows
from ..requests.task import resolve
from ..time.meter import Draw, Meter
from .scope import Scope

__all__ = ["checkpoint", "restore"]

MOST_SEGMENTS = 64
"""After this many generations with partial writes, the next one is written as a whole, so that the number of files stays bounded."""


async def checkpoint(fed: Scope, state: Tree) -> None:
    """Write the next generation; see ``Federation.checkpoint``."""
    world, store = fed.world, fed.world.checkpoints
    async with store.lock:
        number = store.generation + 1
        covered = [m for m in fed.below() if not m.apart(fed)]
        homes = sorted({fed.home, *fed.homes, *(h for m in covered for h in (m.home, *m.homes))})
        chains = {home: await _commit(fed, home, number) for home in homes}
        counted = [m for m in fed.below() if not m.nested]
        everyone = set(world.traffics) == {m.slot for m in [fed, *covered]}  # no scope returns to an earlier moment
        settled = (
            None
            if world.batteries is None
            else world.batteries.settle(fed.clock.now())
            if everyone
            else world.batteries.settled
        )
        books = {m.slot: _book(m, number, settled=everyone) for m in [fed, *counted]}
        content = {
            "state": state,
            "clock": float(fed.clock.now()),
            "homes": chains,
            "reducers": {slot: dict(known) for slot, known in world.reducers.items() if _home_of(slot) in homes},
            "batteries": settled,
            "book": books.pop(fed.slot),
            "below": books,
        }
        store.write(fed.slot, content, world.engine.choices, [m.slot for m in covered])
        store.chains.update(chains)
        if world.batteries is not None and everyone:
            world.batteries.settled = settled or {}
            for member in [fed, *covered]:
                member.traffic.draws = []
        for member in [fed, *counted]:
            book = content["book"] if member is fed else books[member.slot]
            member.written = (len(member.records), list(book["segments"]))
        for home in homes:
            await world.engine.settle(home)
        world.decisions.settle(fed.slot, [m.slot for m in fed.below() if m.apart(fed)])
        fed.kept = True


def _home_of(slot: str) -> str:
    """The home below which reducers and stages keep their own states."""
    return slot.partition("//")[0]


async def _commit(fed: Scope, home: str, number: int) -> list[str]:
    old = fed.world.checkpoints.chains.get(home, [])
    full = len({name.split("-")[1] for name in old}) >= MOST_SEGMENTS  # a generation may have written several
    fresh = await fed.world.engine.commit(home, number, full=full)
    return fresh if full else [*old, *fresh]


def _book(fed: Scope, number: int, *, settled: bool) -> dict[str, Any]:
    """A scope's counts, records and requests in flight; and its draws on batteries, unless they are settled with those of all scopes."""
    folder = fed.world.folder
    done, names = fed.written
    full = len(names) >= MOST_SEGMENTS
    fresh = [] if folder is None else fed.records.trees(0 if full else done)
    segments = [] if full else list(names)
    if folder is not None and fresh:
        name = f"records-{number:08d}-{hash64(fed.slot):016x}.msg"
        write_message(folder / name, {"rows": fresh})
        segments.append(name)
    return {
        "meter": fed.meter.save(),
        "counts": dict(fed.counts),
        "flights": fed.traffic.save(),
        "draws": [] if settled else [draw._asdict() for draw in fed.traffic.draws],
        "segments": segments,
        "records": fed.records.copy() if folder is None else None,
        **({"job": fed.running.slot} if fed.running.slot else {}),
    }


async def restore(fed: Scope, initial: Tree) -> Any:
    """Return to the last checkpoint; see ``Federation.restore``."""
    store = fed.world.checkpoints
    content = store.slots.get(fed.slot)
    below: dict[str, Any] = {} if content is None else dict(content["below"])
    since = 0 if content is None else content["generation"]
    for slot, own in store.slots.items():
        if slot.startswith(fed.slot + "/") and (slot not in below or own["generation"] > since):
            below[slot] = own["book"]
    for slot, book in below.items():
        _read(fed.member(slot), book)
    if content is not None:
        for home, names in content["homes"].items():
            store.chains[home] = list(names)
            await fed.world.engine.load(home, list(names))
        known = {slot: own for slot, own in fed.world.reducers.items() if _home_of(slot) not in content["homes"]}
        fed.world.reducers = {**known, **{slot: dict(own) for slot, own in content.get("reducers", {}).items()}}
        _read(fed, content["book"])
        fed.kept = True
        fed.homes = set(content["homes"]) - {fed.home}
    if fed.slot == "main" and fed.world.resume and fed.world.on_restore is not None:
        fed.world.on_restore(fed.records)
    if fed.world.batteries is not None:
        settled = dict((content or {}).get("batteries") or {}) if fed.slot == "main" else fed.world.batteries.settled
        drawn = [draw for traffic in fed.world.traffics.values() for draw in traffic.draws]
        fed.world.batteries.restart(settled, drawn)
    if content is None:
        return initial
    await _set_clock(fed, content["clock"])
    return content["state"]


async def _set_clock(fed: Scope, moment: float) -> None:
    """Go on at the moment of a checkpoint."""
    if fed.slot == "main":
        fed.clock.set(moment)
    elif fed.clock.virtual:
        await fed.clock.sleep_until(moment)
    else:  # the clock of a new process begins at 0: what was waited for is not waited for again
        fed.clock.set(max(fed.clock.now(), moment))


def _read(fed: Scope, book: dict[str, Any]) -> None:
    """Return a scope to a checkpoint's book. Requests of a job that does not run again yet are left to it: it sends them from its own checkpoint."""
    folder, registry = fed.world.folder, fed.world.registry
    fed.meter = fed.traffic.meter = Meter.load(book["meter"])
    fed.counts = Counter(book["counts"])
    fed.records = PackedRows(folder=folder) if folder is not None else book["records"].copy()
    for name in book["segments"] if folder is not None else ():
        fed.records.extend(read_message(folder / name)["rows"])
    fed.written = (len(fed.records), list(book["segments"]))
    if book.get("job", "") == fed.running.slot:
        fed.traffic.load(book["flights"], fed.home, lambda name: resolve(name, registry))
    fed.traffic.draws = [
        Draw(draw["moment"], np.array(draw["positions"]), np.array(draw["microjoules"]))
        for draw in book.get("draws", ())
    ]
