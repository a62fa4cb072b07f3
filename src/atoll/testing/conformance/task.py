"""What a task that offers ``many`` must do: the same as one party at a time."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.event import Event
from atoll.core.execution.executor import Executor
from atoll.core.persistence.state_table import States, StateTable
from atoll.core.requests.chain import Chain
from atoll.core.requests.cohort import Population
from atoll.core.requests.party import Roster
from atoll.core.requests.request import Mailboxes, PartialSum, Request
from atoll.core.requests.stage import Seeds, derive_seeds
from atoll.core.requests.task import Task
from atoll.core.time.clock import run

from .laws import close, require, same

__all__ = ["check_task_many"]


def check_task_many(
    task: Task,
    population: Population,
    message: Tree,
    *,
    uplink: Chain | None = None,
    states: Mapping[int, Tree] | None = None,
    seed: int = 0,
    tolerance: float = 1e-9,
    half: Task | None = None,
    told: Tree = None,
    mail: Mailboxes | None = None,
) -> None:
    """Require a task's ``many`` (and ``sums``) to give what ``run`` gives party by party, for whole, reordered and single cohorts.

    With a ``half``, the task is wrapped in this party half of a reducer, and the half's ``many``, if it has one, must
    match its ``run`` as well.

    It compares sums, weights, single parts, which parties are included, rejected or raise, private states, reply sizes,
    privacy events, journal entries and opened letters, over two rounds, so that states are used.

    Args:
        task: offers ``many``.
        population: the islands' data; a few clients of different sizes.
        message: the message to them.
        uplink: stages for the replies.
        states: initial private states.
        seed: the seed of the request, and of secrets.
        tolerance: allowed difference, relative to ``1 + |x|``; two orders of addition differ by rounding.
        half: a task that asks for ``island.totals()``.
        told: the half's own message.
        mail: letters for the half.

    Raises:
        AssertionError: they differ.
    """
    require(task.many is not None, f"task {task.name} offers no `many`")
    n = len(population)
    wraps = None if half is None else (half, told, mail)
    cohorts = {
        "everyone": np.arange(n),
        "backwards": np.arange(n)[::-1],
        "one": np.arange(n)[-1:],
        "odd": np.arange(n)[1::2],
    }
    for name, positions in cohorts.items():
        if len(positions):
            _check(
                task,
                population,
                message,
                uplink or Chain(),
                dict(states or {}),
                seed,
                tolerance,
                positions.astype(np.int64),
                name,
                wraps,
            )


def _check(
    task: Task, population: Population, message: Tree, uplink: Chain, states: dict[int, Tree], seed: int, tolerance: float,
    positions: np.ndarray[Any, Any], name: str, wraps: tuple[Task, Tree, Mailboxes | None] | None,
) -> None:  # fmt: skip
    roster = Roster(population.names)
    slow = Executor(roster, population, secret_seed=seed)
    fast = replace(slow, vectorised=True)
    ours, theirs = ({"check": StateTable.holding(States(states))} for _ in range(2))
    for number in range(2):
        rng = Rng.of(seed).child(name, number)
        public = tuple(uplink.public(rng.child("public")))
        seeds = Seeds(
            np.sort(positions), derive_seeds(slow.keys(Request("", task, None, "", rng.key), np.sort(positions)), seed)
        )
        request = Request(
            f"check/{name}/{number}",
            task,
            message,
            "check",
            rng.key,
            uplink,
            public,
            seeds=seeds if uplink.secret else None,
        )
        if wraps is not None:
            half, told, mail = wraps
            own = rng.child("half").key
            request = Request(f"{request.id}/half", half, told, "check//half", own, mail=mail, wraps=request)
        spent: list[set[Any]] = [set(), set()]
        many, one = (
            run(each.fold(request, positions, _tables(request, kept), None, functools.partial(_note, into)))
            for each, kept, into in ((fast, ours, spent[0]), (slow, theirs, spent[1]))
        )
        where = f"{(wraps[0] if wraps else task).name}, cohort {name!r}, round {number + 1}"
        require(wraps is not None or not one.errors, f"{where}: one by one raised {one.errors}")
        _compare(many, one, where, tolerance, uplink.secret)
        require(spent[0] == spent[1], f"{where}: spent {spent[0]}, one by one {spent[1]}")
        for kept, folded in ((ours, many), (theirs, one)):
            for slot, left in folded.left.items():
                kept[slot].put_all(left)


def _note(into: set[Any], event: Event, party: str | Sequence[str], request: str) -> None:
    """Note an event; a ledger writes equal entries once."""
    into.update((name, repr(event), request) for name in ([party] if isinstance(party, str) else party))


def _tables(request: Request, kept: dict[str, StateTable]) -> dict[str, StateTable]:
    return {slot: kept.setdefault(slot, StateTable()) for slot in request.slots}


def _compare(many: PartialSum, one: PartialSum, where: str, tolerance: float, secret: bool) -> None:
    require(many.errors.keys() == one.errors.keys(), f"{where}: many raised {many.errors}, one by one {one.errors}")
    require(
        {p: type(e) for p, e in many.errors.items()} == {p: type(e) for p, e in one.errors.items()},
        f"{where}: many raised {many.errors}, one by one {one.errors}",
    )
    same(np.sort(many.senders), np.sort(one.senders), f"{where}: senders")
    require(
        many.rejected.keys() == one.rejected.keys(), f"{where}: rejected {many.rejected}, one by one {one.rejected}"
    )
    close(_plain(many), _plain(one), f"{where}: sums", tolerance)
    require(many.left.keys() == one.left.keys(), f"{where}: states of {list(many.left)}, one by one {list(one.left)}")
    for slot in one.left:
        ours, theirs = many.left[slot].by_position(), one.left[slot].by_position()
        require(ours.keys() == theirs.keys(), f"{where}: states of {list(ours)}, one by one {list(theirs)}")
        for position, state in theirs.items():
            close(ours[position], state, f"{where}: state of client {position}", tolerance)
    same(many.nbytes.tolist(), one.nbytes.tolist(), f"{where}: reply sizes")
    ours, theirs = _matters(many), _matters(one)
    # A block without islands uses no letters and no secrets, so nobody promises anything.
    require(not ours or ours == theirs, f"{where}: {ours} are in the record, one by one {theirs}")
    sent = set(one.senders.tolist())
    ours, theirs = ({r.reply.party: r for r in folded.kept if r.reply.party in sent} for folded in (many, one))
    # For stages that draw on secrets the journal has the seeds already.
    known = ours.keys() <= theirs.keys() if secret else ours.keys() == theirs.keys()
    require(known, f"{where}: {list(ours)} are in the journal, one by one {list(theirs)}")
    for position, ran in theirs.items() if ours else ():
        mine = ours[position]
        replied, wanted = ({k: [v.value, v.weight] for k, v in r.reply.value.items()} for r in (mine, ran))
        close(replied, wanted, f"{where}: journal of client {position}", tolerance)
        close(mine.left, ran.left, f"{where}: states in the journal of client {position}", tolerance)


def _plain(folded: PartialSum) -> dict[str, Any]:
    """Return totals as plain trees; parts stay in order, so cohort order is compared too."""
    found = {}
    for name, total in folded.totals.items():
        value = [{"value": p.value, "weight": p.weight} for p in total.value] if total.kind == "parts" else total.value
        found[name] = {"kind": total.kind, "value": value, "weight": total.weight, "n": total.n, "role": total.role}
    return found


def _matters(folded: PartialSum) -> dict[int, list[str]]:
    """What each party promises something of; the replies themselves may differ by rounding."""
    return {position: [matter.hex() for matter, _ in rows] for position, rows in folded.promised.items()}
