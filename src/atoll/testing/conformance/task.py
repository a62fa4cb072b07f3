"""What a task that offers ``many`` must do: the same as one party at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from atoll.core.chain import Chain
from atoll.core.clock import run
from atoll.core.cohort import Population
from atoll.core.executor import Executor
from atoll.core.party import Roster
from atoll.core.request import Folded, Request
from atoll.core.rng import Rng
from atoll.core.shelf import Shelf
from atoll.core.states import States
from atoll.core.task import Task
from atoll.core.tree import Tree

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
) -> None:
    """Require a task's ``many`` (and ``sums``) to give what ``run`` gives party by party, for whole, reordered and single cohorts.

    Compared are sums, weights, single parts, who is in, who is rejected and why, private states and reply sizes; over two rounds, so that
    states are used.

    Args:
        task: offers ``many``.
        population: the islands' data; a few clients of different sizes.
        message: what they receive.
        uplink: stages for the replies.
        states: private states to begin with.
        seed: of the request.
        tolerance: allowed difference, relative to ``1 + |x|``; two orders of addition differ by rounding.

    Raises:
        AssertionError: they differ.
    """
    require(task.many is not None, f"task {task.name} offers no `many`")
    n = len(population)
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
            )


def _check(
    task: Task, population: Population, message: Tree, uplink: Chain, states: dict[int, Tree], seed: int, tolerance: float,
    positions: np.ndarray[Any, Any], name: str,
) -> None:  # fmt: skip
    roster = Roster(population.names)
    slow = Executor(roster, population)
    fast = replace(slow, vectorised=True)
    ours, theirs = Shelf.holding(States(states)), Shelf.holding(States(states))
    for number in range(2):
        rng = Rng.of(seed).child(name, number)
        public = tuple(uplink.public(rng.child("public")))
        request = Request(f"check/{name}/{number}", task, message, "check", rng.key, uplink, public)
        many = run(fast.fold(request, positions, ours))
        one = run(slow.fold(request, positions, theirs))
        where = f"{task.name}, cohort {name!r}, round {number + 1}"
        _compare(many, one, where, tolerance)
        ours.put_all(many.states)
        theirs.put_all(one.states)


def _compare(many: Folded, one: Folded, where: str, tolerance: float) -> None:
    require(not one.errors, f"{where}: one by one raised {one.errors}")
    require(not many.errors, f"{where}: many raised {many.errors}")
    same(np.sort(many.senders), np.sort(one.senders), f"{where}: senders")
    require(
        many.rejected.keys() == one.rejected.keys(), f"{where}: rejected {many.rejected}, one by one {one.rejected}"
    )
    close(_plain(many), _plain(one), f"{where}: sums", tolerance)
    ours, theirs = many.states.by_position(), one.states.by_position()
    require(ours.keys() == theirs.keys(), f"{where}: states of {list(ours)}, one by one {list(theirs)}")
    for position, state in theirs.items():
        close(ours[position], state, f"{where}: state of client {position}", tolerance)
    same(many.nbytes.tolist(), one.nbytes.tolist(), f"{where}: reply sizes")


def _plain(folded: Folded) -> dict[str, Any]:
    """Totals as plain trees; parts in order of their weight and value do not move, so cohort order is compared too."""
    found = {}
    for name, total in folded.totals.items():
        value = [{"value": p.value, "weight": p.weight} for p in total.value] if total.kind == "parts" else total.value
        found[name] = {"kind": total.kind, "value": value, "weight": total.weight, "n": total.n, "metric": total.metric}
    return found
