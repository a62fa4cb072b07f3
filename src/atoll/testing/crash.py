"""Deliberate crashes: run a program, kill it at every step, resume it, and compare with an undisturbed run.

A crash is an exception that nothing catches, raised before or after a call of the engine and before or after a flush of
a file to the disk. An append that was not flushed loses its last bytes, as it may on a real disk. After a crash nothing
of the process is reused: the resumed run gets a new world, a new engine, and the folder.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from atoll.core import message as M
from atoll.core.federation.federation import Federation, Program, run_program
from atoll.core.job import Job, as_job
from atoll.core.requests.wire import pack_folded, pack_value
from atoll.core.time.clock import run
from atoll.core.world import World

__all__ = ["Killed", "Life", "killed_and_resumed", "live"]

MakeWorld = Callable[[Path, bool], World]
_VERBS = ("run", "fold", "converse", "commit", "settle", "load", "drop", "publish")


class Killed(BaseException):
    """The process ends here."""


class _Fuse:
    """Counts steps and triggers at one of them; once triggered, every further step fails too."""

    def __init__(self, at: int | None) -> None:
        self.at = at
        self.steps: list[str] = []

    def step(self, name: str) -> None:
        self.steps.append(name)
        if self.at is not None and len(self.steps) > self.at:
            raise Killed(f"at step {self.at}: {self.steps[self.at]}")


class _Mortal:
    """An engine behind a fuse that also records what every party answered."""

    def __init__(self, engine: Any, fuse: _Fuse, answers: dict[str, str]) -> None:
        self._engine = engine
        self._fuse = fuse
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        if name not in _VERBS:
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            self._fuse.step(f"before {name}")
            result = await found(*args, **kwargs)
            self._fuse.step(f"after {name}")
            if name == "run":
                for reply in result:
                    mail = {to: letter.pack() for to, letter in reply.mail.items()}
                    said = None if reply.error else {"value": pack_value(reply.value), "mail": mail}
                    self._note(f"{args[0].id} at party {reply.party}", said)
            elif name == "fold":
                totals = pack_folded(result)["totals"]
                self._note(f"{args[0].id} at parties {args[1].tolist()}", {"totals": totals, "who": result.senders})
            return result

        return call

    def _note(self, request: str, said: Any) -> None:
        before = self._answers.setdefault(request, M.fingerprint(said))
        if before != M.fingerprint(said):
            raise AssertionError(f"two different answers to {request}")


@contextlib.contextmanager
def _fragile_disk(fuse: _Fuse) -> Iterator[None]:
    """Make every flush a step; data not yet flushed at a crash loses its end. Nothing waits for a real disk.

    The fuse belongs to this process: a forked process has a copy that counts nothing.
    """
    mine, dead = os.getpid(), dict[tuple[int, int], int]()

    def lose(handle: int) -> None:
        """Cut off what was not flushed; once dead, whatever other coroutines of the process still write."""
        found = os.fstat(handle)
        file = found.st_dev, found.st_ino
        dead.setdefault(file, max(0, found.st_size - 3))
        os.ftruncate(handle, dead[file])

    def fsync(handle: int) -> None:
        if os.getpid() != mine:
            return
        try:
            fuse.step("before flush")
        except Killed:
            with contextlib.suppress(OSError):  # a folder cannot be truncated
                lose(handle)
            raise
        fuse.step("after flush")

    with mock.patch("os.fsync", fsync):
        yield


@dataclass(frozen=True)
class Life:
    """What one run left behind.

    Attributes:
        result: what the program returned, or the outcome of a job.
        clock: seconds on its clock at the end.
        bytes: meters, of the program and everything below it.
        links: bytes by hub, direction and party.
        records: what it recorded, with the records of every scope.
        spent: privacy events, sorted.
        steps: names of the steps where it could have been killed.
        files: what a run folder keeps of the outcome of a job. If there are any, they are compared in place of the
            results.
    """

    result: Any
    clock: float
    bytes: dict[str, int]
    links: dict[str, Any]
    records: dict[str, list[dict[str, Any]]]
    spent: list[tuple[Any, ...]]
    steps: list[str] = field(default_factory=list, compare=False)
    files: dict[str, Any] = field(default_factory=dict)


def live(
    world: World,
    program: Program | Job,
    *,
    kill_at: int | None = None,
    answers: dict[str, str] | None = None,
) -> Life:
    """Run a program to its end, or to its death at a step.

    Args:
        world: the world that it runs in.
        program: the program, or a job, prepared for the world's population. A program may have the attributes ``tasks``
            and ``jobs``, as in `atoll.simulate`. If the job has helper parties, the world's roster must have them.
        kill_at: the step to kill it at, counted from 0.
        answers: what parties answered in earlier lives; a party that answers the same request differently fails the
            run.

    Raises:
        Killed: it was killed.
    """
    fuse = _Fuse(kill_at)
    world.engine = _Mortal(world.engine, fuse, {} if answers is None else answers)  # type: ignore[assignment]
    prepared = as_job(program).prepare(world.population)
    world.install(prepared)
    chosen: Program = prepared.program

    async def main() -> tuple[Any, Federation, float]:
        result, fed = await run_program(world, chosen)
        return result, fed, world.clock.now() if world.clock.virtual else 0.0

    with _fragile_disk(fuse):
        result, fed, clock = run(main(), virtual=world.clock.virtual)
    family = [fed, *fed.below()]
    links = {f"{m.slot}:{link['hub']}:{link['direction']}": link for m in family for link in m.meter.save()["links"]}
    spent = sorted((e["party"], e["request"].partition("~")[0], e["kind"]) for e in world.ledger)
    records = {m.slot: list(m.records) for m in family if m.records}
    life = Life(result, clock, fed.bytes(), links, records, spent, fuse.steps)
    if not isinstance(program, Job):
        return life
    outcome = prepared.outcome(result)
    return replace(life, result=outcome, files=dict(prepared.files(outcome)))


def killed_and_resumed(
    make_world: MakeWorld,
    program: Program | Job,
    folder: Path,
    *,
    points: int | None = None,
    deaths: int = 1,
    exact_spending: bool = True,
) -> Life:
    """Kill a program at its steps, one life each, resume it, and require the result of the undisturbed run, to the bit.

    Every resumed run must have the same result, clock, meters and records; no party may give two different answers to
    one request; the privacy ledger must hold everything from before the crash, and (``exact_spending``) nothing twice.

    Args:
        make_world: ``(folder, resume) -> World``, with a fresh engine.
        program: the program, or a job. Tasks that are not at the top level of a module are in its attribute ``tasks``.
        folder: an empty folder for the runs.
        points: how many steps to kill at, spread evenly, first and last among them, or the one in the middle; ``None``
            is every step.
        deaths: how often to kill it at that step, counted from its last start.
        exact_spending: use False for sessions: one that is cut off and held again releases twice and is booked
            twice.

    Returns:
        The undisturbed run.

    Raises:
        AssertionError: a resumed run differs.
    """
    whole = live(make_world(folder / "undisturbed", False), program)
    for step in _spread(len(whole.steps), points):
        _die_and_live(make_world, program, folder / f"killed-{step}", whole, step, deaths, exact_spending)
    return whole


def _die_and_live(
    make_world: MakeWorld,
    program: Program | Job,
    folder: Path,
    whole: Life,
    step: int,
    deaths: int,
    exact_spending: bool,
) -> None:
    answers: dict[str, str] = {}
    booked: list[Any] = []
    killed: Killed | None = None
    for death in range(deaths + 1):
        world = make_world(folder, death > 0)
        entries = list(world.ledger)
        _require(entries[: len(booked)] == booked, "the privacy ledger shrank", killed)
        try:
            # A resumed life has fewer steps, and secrets differ in size: the step may never come.
            again = live(world, program, kill_at=step if death < deaths else None, answers=answers)
        except Killed as end:
            killed, booked = end, list(make_world(folder, True).ledger)
            continue
        _require(list(world.ledger)[: len(booked)] == booked, "the privacy ledger shrank", killed)
        _compare(whole, again, exact_spending, killed)
        return


def _spread(steps: int, points: int | None) -> Sequence[int]:
    if points is None or points >= steps:
        return range(steps)
    if points == 1:
        return [steps // 2]
    return sorted({int(i) for i in np.linspace(0, steps - 1, points)})


def _compare(whole: Life, again: Life, exact_spending: bool, killed: Killed | None) -> None:
    for name in ("files" if whole.files else "result", "clock", "bytes", "links", "records"):
        _same(getattr(whole, name), getattr(again, name), name, killed)
    if exact_spending:
        _require(whole.spent == again.spent, f"spent {again.spent}, not {whole.spent}", killed)
    else:
        _require(set(whole.spent) == set(again.spent), f"spent {again.spent}, not {whole.spent}", killed)


def _same(whole: Any, again: Any, name: str, killed: Killed | None) -> None:
    _require(M.equal(whole, again), f"{name} is {_short(again)}, not {_short(whole)}", killed)


def _short(value: Any, most: int = 2000) -> str:
    """Shorten a value for people to read: a model takes megabytes."""
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def _require(holds: bool, what: str, killed: Killed | None) -> None:
    if not holds:
        raise AssertionError(f"after a crash {killed or 'that never came'} and a resume, {what}")
